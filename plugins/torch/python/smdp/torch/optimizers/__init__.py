"""Optimizers around optimizers, and the parameters of an optimizer."""
