"""`python -m smdp` is `smdp`."""

from smdp.cli import main

if __name__ == "__main__":
    main()
