"""The ranks and process groups of each parallel axis."""
