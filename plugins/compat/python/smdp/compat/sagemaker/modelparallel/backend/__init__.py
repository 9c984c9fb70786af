"""`smdistributed.modelparallel.backend`."""
