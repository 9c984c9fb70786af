"""The pipelined model that users train, and the functions that split a model."""
