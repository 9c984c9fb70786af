"""Optimizers that wrap optimizers, and the parameters of an optimizer."""
