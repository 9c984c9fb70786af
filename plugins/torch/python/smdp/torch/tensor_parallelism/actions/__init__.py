"""What tensor parallelism does to single modules."""
