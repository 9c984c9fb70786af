"""Transfers of values and gradients between ranks."""
