"""Initialization, configuration, ranks, groups and messages of the SMP API."""
