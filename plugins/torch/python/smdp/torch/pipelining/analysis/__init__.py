"""What units cost."""
