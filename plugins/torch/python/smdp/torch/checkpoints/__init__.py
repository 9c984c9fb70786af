"""Saving a model, and loading it into any other layout."""
