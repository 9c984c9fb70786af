"""What scripts import as `smdistributed`."""
