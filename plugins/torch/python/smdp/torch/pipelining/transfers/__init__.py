"""Values and gradients between ranks."""
