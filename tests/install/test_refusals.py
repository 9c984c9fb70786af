"""Other systems, Pythons and compilers are refused in one line: by pip from the wheel's tag, by CMake."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from conftest import ROOT, Release
from pythons import Venv, clean_environment, find

MakeVenv = Callable[[tuple[int, int]], Venv]


@pytest.fixture(scope="module")
def venv(make_venv: MakeVenv) -> Venv:
    made = make_venv((3, 11))
    made.install("--upgrade", "pip")  # one that knows free-threaded Pythons, as those bring
    return made


def dry_run(venv: Venv, wheel: Path, target: str) -> subprocess.CompletedProcess[str]:
    """Ask pip whether it would install the wheel for another machine or Python."""
    options = ["--dry-run", "--no-deps", "--target", "nowhere", "--only-binary", ":all:"]
    return venv.run("pip", "install", *options, *target.split(), wheel)


@pytest.mark.parametrize(
    "target",
    [
        "--platform win_amd64",
        "--platform macosx_14_0_arm64",
        "--platform musllinux_1_2_x86_64",
        "--platform linux_aarch64",
        "--platform linux_i686",
        "--platform linux_x86_64 --python-version 3.9",
        "--platform linux_x86_64 --python-version 3.14 --implementation cp --abi cp314t",
        "--platform linux_x86_64 --python-version 3.11 --implementation pp",
    ],
)
def test_pip_refuses_the_wheel(venv: Venv, release: Release, target: str) -> None:
    done = dry_run(venv, release.wheel, target)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    assert line == f"ERROR: {release.wheel.name} is not a supported wheel on this platform."


@pytest.mark.parametrize("version", ["3.10", "3.14", "3.15", "3.29"])
def test_pip_takes_the_wheel_for_pythons_to_come(venv: Venv, release: Release, version: str) -> None:
    done = dry_run(venv, release.wheel, f"--platform linux_x86_64 --python-version {version}")
    assert done.returncode == 0, done.stderr


def test_python_too_old_is_one_line_of_pip(release: Release, tmp_path: Path) -> None:
    python = find((3, 9))
    if python is None:
        pytest.skip("there is no Python 3.9")
    old = Venv(python, tmp_path / "venv")
    done = old.run("pip", "install", release.wheel)
    assert f"ERROR: {release.wheel.name} is not a supported wheel on this platform." in done.stderr
    # An index says which Pythons a file is for.
    page = tmp_path / "simple" / "smdp" / "index.html"
    page.parent.mkdir(parents=True)
    links = [
        f'<a href="{file.as_uri()}" data-requires-python="&gt;=3.10">{file.name}</a>' for file in release
    ]
    page.write_text("<!DOCTYPE html><html><body>" + "<br>".join(links) + "</body></html>")
    index = ["--index-url", (tmp_path / "simple").as_uri()]
    done = old.run("pip", "install", *index, "smdp", PIP_EXTRA_INDEX_URL="", PIP_FIND_LINKS="")
    assert done.returncode == 1
    assert re.search(r"require a different python version: .*Requires-Python >=3\.10", done.stderr), (
        done.stderr
    )


def configure(folder: Path, *options: str, **variables: str) -> str:
    """Run CMake, which must end; give the line of smdp."""
    done = subprocess.run(
        ["cmake", "-S", str(ROOT / "core"), "-B", str(folder), "-DSMDP_BUILD_PYTHON=OFF", *options],
        env=clean_environment(**variables), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    (line,) = [line.strip() for line in done.stderr.splitlines() if "[smdp]" in line]
    return line


STATIC = "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY"  # this machine cannot link for the other one


@pytest.mark.parametrize("system", ["Windows", "Darwin", "FreeBSD"])
def test_build_on_another_system(tmp_path: Path, system: str) -> None:
    line = configure(tmp_path, f"-DCMAKE_SYSTEM_NAME={system}")
    assert line == f"[smdp] only Linux is supported, not {system}: install it in a container or in WSL 2"


def test_build_without_a_compiler(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("cmake", "ninja", "make"):
        if found := shutil.which(tool):
            (tools / tool).symlink_to(os.path.realpath(found))
    line = configure(tmp_path / "build", PATH=str(tools), CXX="")
    assert line.startswith(
        "[smdp] there is no working C++ compiler: install g++ 12 or newer, or take the wheel"
    )


def test_build_with_a_compiler_that_fails(tmp_path: Path) -> None:
    line = configure(tmp_path, CXX="/bin/false")
    assert line.startswith("[smdp] there is no working C++ compiler: ")


def test_build_with_an_old_compiler(tmp_path: Path) -> None:
    if shutil.which("g++-11") is None:
        pytest.skip("there is no g++-11")
    line = configure(tmp_path, CXX="g++-11")
    assert re.match(r"\[smdp\] .*g\+\+-11 \(GNU 11\.[0-9.]+\) is too old: install g\+\+ 12 or newer", line)


def test_build_for_32_bits(tmp_path: Path) -> None:
    line = configure(tmp_path, "-DCMAKE_CXX_FLAGS=-m32", STATIC)
    assert re.match(r"\[smdp\] a 64-bit system is needed, but .* makes code for 4-byte addresses", line)


def test_build_without_parts_of_cxx20(tmp_path: Path) -> None:
    # A standard library that lacks <coroutine>, as those of old systems do beside a new clang.
    headers = tmp_path / "headers"
    headers.mkdir()
    (headers / "coroutine").write_text("#error this library has none\n")
    line = configure(tmp_path / "build", f"-DCMAKE_CXX_FLAGS=-I{headers}")
    assert re.match(r"\[smdp\] .* with its library lacks parts of C\+\+20 \(<coroutine>, <span>\): ", line)


def test_build_for_free_threaded_python(tmp_path: Path) -> None:
    line = configure(tmp_path, "-DSKBUILD_SOABI=cpython-314t-x86_64-linux-gnu")
    assert line.startswith("[smdp] free-threaded Python (cpython-314t-x86_64-linux-gnu) is not supported: ")


def test_build_on_musl(tmp_path: Path) -> None:
    headers = Path(f"/usr/include/{platform.machine()}-linux-musl")
    if not headers.is_dir():
        pytest.skip("there are no headers of musl (musl-dev)")
    line = configure(tmp_path, STATIC, f"-DCMAKE_CXX_FLAGS=-nostdinc -isystem {headers}")
    assert line.startswith("[smdp] glibc is needed, which this system (musl?) lacks: ")


def test_pip_shows_the_line(venv: Venv, release: Release) -> None:
    done = venv.run("pip", "install", release.sdist, CXX="/bin/false")
    assert done.returncode == 1
    assert "[smdp] there is no working C++ compiler: " in done.stderr + done.stdout
