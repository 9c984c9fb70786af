"""Support for stopping all ranks together when a job is preempted."""
