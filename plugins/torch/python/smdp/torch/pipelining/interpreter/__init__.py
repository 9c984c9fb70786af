"""The model's own code, which every rank runs."""
