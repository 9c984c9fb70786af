"""Optimizer steps in the next forward."""
