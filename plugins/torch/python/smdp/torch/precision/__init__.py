"""Gradient clipping and loss scaling."""
