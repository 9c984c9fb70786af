"""The wheel and its plugins where no compiler is: in a bare Debian with Python and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from conftest import Release
from pythons import JOBS, TIMEOUT_S, Venv, clean_environment, cpu_torch, run

COMPILERS = ("gcc", "g++", "cc", "c++", "clang", "ld", "as", "make", "cmake", "ninja")
# A line that finds a compiler ends the script.
LOOK = f"for tool in {' '.join(COMPILERS)}; do ! command -v $tool || exit 1; done"


class Debian:
    """A root folder with a Debian of its own.

    Args:
        folder: Its root.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def works(self, script: str) -> str:
        """Run a shell script in it; give the output."""
        mounts = (
            f"mount -t proc proc {self.folder}/proc && mount --rbind /dev {self.folder}/dev"
            f' && exec chroot {self.folder} env -i PATH=/venv/bin:/usr/bin:/bin HOME=/root sh -euc "$1"'
        )
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", mounts, "sh", script],
            capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Debian:
    if os.geteuid() != 0:
        pytest.skip("mmdebstrap and chroot need root")
    if shutil.which("mmdebstrap") is None:
        pytest.skip("there is no mmdebstrap")
    if "VERSION_CODENAME=bookworm" not in Path("/etc/os-release").read_text():
        pytest.skip("the wheels are fetched for Debian 12's Python 3.11")
    folder = tmp_path_factory.mktemp("debian")
    listed = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
    sources = next(str(path) for path in listed if path.exists())
    command = ["mmdebstrap", "--variant=minbase", "--include=python3,python3-venv", "bookworm", str(folder)]
    done = run([*command, sources], clean_environment(), folder)
    assert done.returncode == 0, done.stderr
    made = Debian(folder)
    made.works(LOOK)
    shutil.copytree(JOBS, folder / "jobs")
    return made


def fetch(venv: Venv, debian: Debian, *requirements: str | Path) -> None:
    """Put wheels where pip in there finds them; all are ready made, nothing gets built."""
    venv.works(
        "pip", "download", "--quiet", "--only-binary", ":all:", "-d", debian.folder / "wheels", *requirements
    )


def trains(debian: Debian, job: str, *requirements: str) -> None:
    """Install in a fresh environment and run a job on two ranks."""
    output = debian.works(
        f"rm -rf /venv; python3 -m venv /venv\n"
        f"pip install --quiet --no-index --find-links /wheels {' '.join(requirements)}\n"
        f"{LOOK}\n"
        f"smdp run -n 2 /jobs/{job}"
    )
    assert output.count("the result is right") == 2, output


def test_numpy(debian: Debian, release: Release, make_venv: Callable[[tuple[int, int]], Venv]) -> None:
    fetch(make_venv((3, 11)), debian, release.wheel)
    trains(debian, "numpy_job.py", "smdp")


def test_torch(debian: Debian, release: Release, make_venv: Callable[[tuple[int, int]], Venv]) -> None:
    venv = make_venv((3, 11))
    torch = cpu_torch(venv)
    if torch is None:
        pytest.skip("PIP_FIND_LINKS names no torch for CPUs")
    venv.install("--no-index", "--no-deps", torch)
    fetch(venv, debian, release.wheel, torch)
    trains(debian, "torch_job.py", "smdp[torch]", torch)


def test_tensorflow(debian: Debian, release: Release, make_venv: Callable[[tuple[int, int]], Venv]) -> None:
    fetch(make_venv((3, 11)), debian, release.wheel, "tensorflow-cpu>=2.21")
    trains(debian, "tensorflow_job.py", "smdp", "tensorflow-cpu")


def test_path_without_a_compiler(
    release: Release, make_venv: Callable[[tuple[int, int]], Venv], tmp_path: Path
) -> None:
    # Also where no other Debian can be made: nothing but the environment's own programs is on PATH.
    venv = make_venv((3, 11))
    path = str(venv.folder / "bin")
    compilers = {"CC": "/bin/false", "CXX": "/bin/false"}
    venv.install("--only-binary", ":all:", release.wheel, PATH=path, **compilers)
    done = venv.run("smdp", "run", "-n", "2", JOBS / "numpy_job.py", PATH=path, **compilers)
    assert done.stdout.count("the result is right") == 2, done.stdout + done.stderr
