"""Checkpoint files of the SMP API."""
