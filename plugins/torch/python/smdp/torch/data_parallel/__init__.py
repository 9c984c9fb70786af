"""DistributedDataParallel, gradient hooks, compression and SyncBatchNorm."""
