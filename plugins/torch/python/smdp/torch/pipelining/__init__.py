"""Pipelines: a model's stages on several ranks, by ghost execution."""
