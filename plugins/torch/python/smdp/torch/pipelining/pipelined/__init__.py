"""The module that users hold; it wires all others."""
