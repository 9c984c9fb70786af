"""The versions that the images pin, on the Pythons of other distributions than the one they are tested on."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pythons import Venv, text

CONTAINERS = Path(__file__).resolve().parents[2] / "containers"
# Those of Ubuntu 22.04 and Debian 13.
PYTHONS = [(3, 10), (3, 13)]
# Where a wheel has its metadata within, pip fetches that part of it and not gigabytes of CUDA.
RESOLVE = (
    "install",
    "--dry-run",
    "--quiet",
    "--no-cache-dir",
    "--only-binary=:all:",
    "--use-feature=fast-deps",
)


@pytest.mark.parametrize("version", PYTHONS, ids=text)
@pytest.mark.parametrize("image", ["pytorch", "tensorflow"])
def test_pip_finds_a_wheel_of_everything(
    image: str, version: tuple[int, int], make_venv: Callable[[tuple[int, int]], Venv]
) -> None:
    venv = make_venv(version)
    constraints = CONTAINERS / "common" / "constraints.txt"
    requirements = CONTAINERS / image / "requirements.txt"
    ours = ("nanobind-backend", "typer", "rich")  # what smdp needs
    # Without this machine's index of builds for CPUs, which may know one Python only.
    done = venv.run(
        "pip", *RESOLVE, "-c", constraints, "-r", requirements, *ours,
        PIP_CONFIG_FILE=os.devnull, PIP_EXTRA_INDEX_URL="", PIP_FIND_LINKS="",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
