"""The subcommands of `smdp`: one file per command, with its options and error reporting."""
