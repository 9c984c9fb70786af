"""Gradients of replicas and of tied weights, and those of weights alone."""
