"""DistributedModel and its partitions."""
