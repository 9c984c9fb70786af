"""`ShardedDataParallel`: parameters, gradients and optimizer state that are distributed over ranks."""
