"""SMP's API: DistributedModel and its partitions."""
