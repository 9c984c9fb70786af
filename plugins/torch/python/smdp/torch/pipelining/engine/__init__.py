"""Microbatches, schedule tables and the step."""
