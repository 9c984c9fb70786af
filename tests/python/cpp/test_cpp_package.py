"""A C++ program builds on the installed package, by CMake and by pkg-config, and runs on two ranks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from smdp import cpp

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "cpp"

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")


def output(*command: str, **variables: str) -> str:
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def folder(option: str) -> str:
    return output(sys.executable, "-m", "smdp.cpp", option).strip()


def check(program: Path) -> None:
    lines = output("smdp", "run", "-n", "2", str(program))
    for rank in range(2):
        assert f"rank {rank} of 2: the sum is 3" in lines


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs CMake")
def test_a_program_builds_by_cmake(tmp_path: Path) -> None:
    assert folder("--cmake") == cpp.cmake_dir()
    output("cmake", "-S", str(EXAMPLE), "-B", str(tmp_path), f"-Dsmdp_DIR={cpp.cmake_dir()}")
    output("cmake", "--build", str(tmp_path))
    check(tmp_path / "all_reduce")


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="needs pkg-config")
def test_a_program_builds_by_pkg_config(tmp_path: Path) -> None:
    flags = output("pkg-config", "--cflags", "--libs", "smdp", PKG_CONFIG_PATH=folder("--pkg-config")).split()
    output("c++", str(EXAMPLE / "all_reduce.cpp"), *flags, "-o", str(tmp_path / "all_reduce"))
    check(tmp_path / "all_reduce")


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="needs pkg-config")
def test_only_public_headers_are_shipped() -> None:
    include = output("pkg-config", "--cflags-only-I", "smdp", PKG_CONFIG_PATH=folder("--pkg-config")).strip()
    shipped = Path(include.removeprefix("-I")) / "smdp"
    assert (shipped / "group.h").is_file()
    assert not (shipped / "internal").exists()


def test_what_is_asked_for_must_be_named() -> None:
    with pytest.raises(SystemExit):
        cpp.main([])
