"""Placeholders for the values that another stage computes."""
