"""Values of stages, tensors in containers, and properties of torch functions."""
