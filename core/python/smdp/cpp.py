"""Prints the folders that C++ programs need to build against smdp, e.g. `python -m smdp.cpp --cmake`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from smdp import _core

_HERE = Path(str(_core.__file__)).parent  # in an editable install, the Python sources are elsewhere


def cmake_dir() -> str:
    """Returns the folder of the CMake package, for `cmake -Dsmdp_DIR=...`."""
    return str(_HERE / "share" / "cmake")


def pkg_config_dir() -> str:
    """Returns the folder of smdp.pc, for `PKG_CONFIG_PATH=...`."""
    return str(_HERE / "share" / "pkgconfig")


def include_dir() -> str:
    """Returns the folder of the headers, which programs include as `smdp/group.h`."""
    return str(_HERE / "include")


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the requested folder."""
    folders = {"cmake": cmake_dir, "pkg-config": pkg_config_dir, "include": include_dir}
    parser = argparse.ArgumentParser(prog="python -m smdp.cpp", description=__doc__)
    asked = parser.add_mutually_exclusive_group(required=True)
    for name, function in folders.items():
        help_ = str(function.__doc__).partition(",")[0].replace("Returns", "print")
        asked.add_argument(f"--{name}", action="store_const", const=name, dest="folder", help=help_)
    sys.stdout.write(folders[parser.parse_args(arguments).folder]() + "\n")


if __name__ == "__main__":
    main()
