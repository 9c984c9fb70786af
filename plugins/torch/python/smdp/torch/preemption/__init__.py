"""Stopping together."""
