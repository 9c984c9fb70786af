"""Waits in front of the forwards that read parameters."""
