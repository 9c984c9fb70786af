"""Models that are built without memory."""
