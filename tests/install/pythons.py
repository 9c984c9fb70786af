"""The Pythons of this machine, and fresh virtual environments of them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

OLDEST = (3, 10)
# Versions that are looked for; what is not there is skipped by name.
VERSIONS = tuple((3, minor) for minor in range(10, 16))
# A build of the core, or a download of a framework.
TIMEOUT_S = 1500

JOBS = Path(__file__).parent / "jobs"


def text(version: tuple[int, int]) -> str:
    """Give it as people write it."""
    return f"{version[0]}.{version[1]}"


def clean_environment(**more: str) -> dict[str, str]:
    """Give this process's variables without those by which one Python finds another's packages."""
    hidden = ("PYTHON", "VIRTUAL_ENV", "TOX_", "COV_", "PIP_REQUIRE_VIRTUALENV", "__PYVENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)} | more


@cache
def find(version: tuple[int, int]) -> Path | None:
    """Give a Python of this version from PATH or from pyenv that can make virtual environments."""
    name = f"python{text(version)}"
    folders = [Path(folder) for folder in os.get_exec_path()]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders += sorted(pyenv.glob(f"versions/{text(version)}.*/bin"), reverse=True)
    check = "import ensurepip, sys; print(*sys.version_info[:2])"
    for python in (folder / name for folder in folders):
        if not python.is_file():
            continue
        done = subprocess.run(
            [python, "-c", check], env=clean_environment(), capture_output=True, text=True, check=False
        )
        # pyenv's shims stand on PATH for versions that are not chosen; they fail here.
        if done.returncode == 0 and done.stdout.split() == [str(part) for part in version]:
            return python
    return None


def found() -> list[tuple[int, int]]:
    """Give the versions that are here, from 3.10 on."""
    return [version for version in VERSIONS if find(version)]


class Venv:
    """A fresh virtual environment, with the pip that came with its Python.

    Args:
        python: The Python it is made of.
        folder: Where it is made.
    """

    def __init__(self, python: Path, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        subprocess.run([python, "-m", "venv", folder], env=clean_environment(), check=True)

    def run(self, *argv: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, or one on PATH, and wait for it; give what it printed."""
        own = self.folder / "bin" / argv[0]
        command = [str(own if own.exists() else argv[0]), *map(str, argv[1:])]
        return run(command, clean_environment(**variables), self.folder)

    def install(self, *arguments: str | Path, **variables: str) -> None:
        """Run `pip install`."""
        done = self.run("pip", "install", "--quiet", *arguments, **variables)
        assert done.returncode == 0, done.stdout + done.stderr

    def works(self, *argv: str | Path) -> str:
        """Run a program that must succeed; give its output."""
        done = self.run(*argv)
        assert done.returncode == 0, f"{argv} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def trains(self, job: str) -> None:
        """Run a job of jobs/ on two ranks; each says that it is done."""
        output = self.works("smdp", "run", "-n", "2", JOBS / job)
        assert output.count("the result is right") == 2, output


def run(command: list[str], environment: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, within the time limit of this suite."""
    return subprocess.run(
        command,
        env=dict(environment), cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def cpu_torch(venv: Venv) -> str | None:
    """Give the requirement of a torch without CUDA for this Python; None where none is at hand.

    Only what PIP_FIND_LINKS names is looked at: on the index of most machines torch means gigabytes of CUDA.
    """
    requirement = "torch==2.13.0"
    done = venv.run("pip", "download", "--quiet", "--no-index", "--no-deps", "-d", "torch", requirement)
    return requirement if done.returncode == 0 and list(venv.folder.glob("torch/*cpu*")) else None
