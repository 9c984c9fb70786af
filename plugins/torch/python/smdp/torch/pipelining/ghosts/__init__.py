"""Placeholders for what another stage computes."""
