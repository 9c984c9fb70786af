"""Measures the costs of units, by which a model is split."""
