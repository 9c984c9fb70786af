"""Connects the ranks of a new group through torch's store."""
