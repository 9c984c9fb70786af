"""SMP's API: the files of its checkpoints."""
