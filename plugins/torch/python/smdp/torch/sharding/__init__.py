"""`ShardedOptimizer`: the state of an optimizer, kept once for all ranks or once per host."""
