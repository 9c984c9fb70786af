"""Runs the model's own code on every rank, with placeholders for the values of other ranks."""
