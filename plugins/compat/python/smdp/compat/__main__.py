"""`python -m smdp.compat train.py ...`: runs a script whose SMDDP or Horovod imports resolve to smdp."""

from __future__ import annotations

import os
import runpy
import sys

from smdp_compat import install


def main() -> None:
    """Installs the import finder, then runs the script in this process."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        sys.exit("usage: python -m smdp.compat [-m MODULE | FILE] [arguments of the script]")
    install()
    if words[0] == "-m":
        if len(words) == 1:
            sys.exit("[smdp] python -m smdp.compat -m: the name of a module is missing")
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    if not os.path.isfile(words[0]):
        sys.exit(f"[smdp] python -m smdp.compat: no such file: {words[0]}")
    sys.argv = words
    sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
    runpy.run_path(words[0], run_name="__main__")


main()
