"""Builds models without allocating memory for them."""
