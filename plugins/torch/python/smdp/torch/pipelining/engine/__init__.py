"""Runs training steps: microbatches, schedule tables and their execution."""
