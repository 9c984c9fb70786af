"""`smdistributed.modelparallel.test.torch`."""
