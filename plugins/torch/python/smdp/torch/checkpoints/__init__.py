"""Saves a model and loads it into any parallel layout."""
