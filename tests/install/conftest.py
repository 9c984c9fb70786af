"""What is released, built once; and a fresh environment with the wheel for each Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import pythons

ROOT = Path(__file__).resolve().parents[2]


class Release(NamedTuple):
    """The two files that an index gets."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Build both from the tree; or take those in the folder that SMDP_DIST names, to try an upload."""
    if ready := os.environ.get("SMDP_DIST"):
        (sdist,), (wheel,) = Path(ready).resolve().glob("*.tar.gz"), Path(ready).resolve().glob("*.whl")
        return Release(sdist, wheel)
    folder = tmp_path_factory.mktemp("dist")
    # With both asked for, build would make the wheel out of the sdist; the tree's is compared with that.
    for kind in ("--sdist", "--wheel"):
        command = [sys.executable, "-m", "build", kind, "--outdir", str(folder), str(ROOT)]
        done = pythons.run(command, pythons.clean_environment(), folder)
        assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Release(sdist, wheel)


@pytest.fixture(scope="session")
def make_venv(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[int, int]], pythons.Venv]:
    """Give a function that makes a fresh environment of a Python, or skips where it is missing."""

    def make(version: tuple[int, int]) -> pythons.Venv:
        python = pythons.find(version)
        if python is None:
            pytest.skip(f"there is no Python {pythons.text(version)} on PATH or in pyenv")
        return pythons.Venv(python, tmp_path_factory.mktemp("venv"))

    return make
