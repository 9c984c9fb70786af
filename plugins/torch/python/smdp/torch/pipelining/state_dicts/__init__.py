"""Entries of the whole model's state."""
