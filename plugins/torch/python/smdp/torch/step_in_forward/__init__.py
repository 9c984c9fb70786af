"""Optimizers that step in the next forward."""
