"""SMP's API: init, configuration, ranks, groups and messages."""
