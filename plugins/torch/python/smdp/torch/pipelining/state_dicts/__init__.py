"""Entries of the whole model's state dict and of the optimizer's state."""
