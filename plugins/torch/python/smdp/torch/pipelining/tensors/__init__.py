"""Values of stages, tensors in containers and torch functions."""
