"""Pipelines by ghost execution: what a rank owns, what it measures, and how it runs."""
