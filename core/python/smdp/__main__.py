"""Runs the command line of `smdp` for `python -m smdp`."""

from smdp.cli import main

if __name__ == "__main__":
    main()
