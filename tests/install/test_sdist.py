"""The source distribution: what is in it, and that each Python builds the same wheel of it, without git."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from conftest import ROOT, Release
from pythons import OLDEST, Venv, found, text

TOP_LEVEL = {"core", "plugins", "containers", "tests", "docs", "pyproject.toml", "tox.ini"} | {
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "PKG-INFO",
    ".clang-format", ".dockerignore", ".gitignore",
}  # fmt: skip
JUNK = {".pyc", ".so", ".o", ".a", ".whl", ".gz", ".zip", ".log", ".egg-info", ".npz", ".safetensors"}
# The oldest, the one that the other tests run on, and the newest that is here.
BUILT_ON = sorted({OLDEST, (3, 11), *found()[-1:]})


def files(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        members = [member for member in archive.getmembers() if not member.isdir()]
    assert all(member.isfile() for member in members), "links and devices do not belong in it"
    roots = {member.name.split("/")[0] for member in members}
    assert roots == {sdist.name.removesuffix(".tar.gz")}
    return {member.name.partition("/")[2] for member in members}


def test_it_holds_the_sources_and_no_junk(release: Release) -> None:
    names = files(release.sdist)
    assert {name.split("/")[0] for name in names} <= TOP_LEVEL
    assert not [name for name in names if Path(name).suffix in JUNK or "__pycache__" in name]
    size_mb = release.sdist.stat().st_size / 1e6
    print(f"the sdist has {len(names)} files, {size_mb:.1f} MB")
    assert size_mb < 3


def test_it_holds_what_git_holds(release: Release) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip(f"no git, or not a clone: {listed.stderr.strip()}")
    tracked = {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    assert files(release.sdist) == {name for name in tracked if not name.startswith(".ci/")} | {"PKG-INFO"}


@pytest.mark.parametrize("version", BUILT_ON, ids=text)
def test_it_installs_without_git_and_gives_the_same_files(
    release: Release,
    make_venv: Callable[[tuple[int, int]], Venv],
    version: tuple[int, int],
    tmp_path: Path,
) -> None:
    venv = make_venv(version)
    # Stands before the real one; a build that asks git fails.
    git = tmp_path / "git"
    git.write_text('#!/bin/sh\necho "this machine has no git" >&2\nexit 127\n')
    git.chmod(0o755)
    start = time.monotonic()
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    venv.install(release.sdist, PATH=path)
    print(f"pip install of the sdist took {time.monotonic() - start:.0f} s")
    venv.works("pip", "check")
    venv.trains("numpy_job.py")

    listing = venv.works("python", "-c", "import importlib.metadata as m; print(*m.files('smdp'), sep='\\n')")
    metadata = {"INSTALLER", "REQUESTED", "direct_url.json"}  # of pip
    installed = {
        name
        for name in listing.splitlines()
        if not name.endswith(".pyc") and not name.startswith("..") and name.split("/")[-1] not in metadata
    }
    with zipfile.ZipFile(release.wheel) as wheel:
        assert installed == {name for name in wheel.namelist() if not name.endswith("/")}
    tag = venv.works(
        "python", "-c", "import importlib.metadata as m; print(m.distribution('smdp').read_text('WHEEL'))"
    )
    assert "Tag: cp310-abi3-" in tag
