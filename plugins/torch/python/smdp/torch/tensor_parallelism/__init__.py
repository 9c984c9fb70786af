"""Layers that are divided over the ranks of the tensor axis."""
