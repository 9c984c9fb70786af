"""Marks, registration and replacement of modules that tensor parallelism divides."""
