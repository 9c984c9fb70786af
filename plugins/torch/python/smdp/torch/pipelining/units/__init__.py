"""Modules that are never cut, and what a call of one is."""
