#!/usr/bin/env python3
"""The final stage: install Python packages, from wheels only, so that no compiler is needed.

    install_packages.py FOLDER [--cuda 0|1]     the image whose requirements.txt lies in FOLDER, and smdp
    install_packages.py --file FILE             more, beside what is installed

Packages go into /opt/smdp/venv; or, where the base image brings the framework (Amazon's and NVIDIA's do),
beside that framework, which stays as it is. Run by the python3 of the base image.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = Path("/opt/smdp/venv")
WHEELS = Path("/wheels")
FRAMEWORKS = ("torch", "tensorflow", "tensorflow-cpu")


class InstallError(Exception):
    """What is wrong with the base image, the registry or an argument, and what to do."""


def name_of(requirement: str) -> str:
    """Give the normalised name of a requirement, such as "ml-dtypes" of "ml_dtypes==0.6; extra == 'x'"."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    return re.sub(r"[-_.]+", "-", match.group()).lower() if match else ""


def read_requirements(path: Path) -> list[str]:
    """Give the requirements of a file and of those it includes by -r."""
    found: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text.startswith("-r "):
            found += read_requirements(path.parent / text[3:].strip())
        elif text:
            found.append(text)
    return found


def without(requirements: Iterable[str], present: Iterable[str]) -> list[str]:
    """Give the requirements that are not among the names of `present`."""
    names = set(present)
    return [requirement for requirement in requirements if name_of(requirement) not in names]


def installed(python: str) -> dict[str, str]:
    """Give the packages of an interpreter, with their versions."""
    code = (
        "import importlib.metadata as m, json; "
        "print(json.dumps([[d.metadata['Name'], d.version] for d in m.distributions()]))"
    )
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return {name_of(name): version for name, version in json.loads(done.stdout) if name}


def pins(present: Mapping[str, str]) -> list[str]:
    """Give constraints that leave what is installed as it is.

    Versions that pip would not read are left out: packages of Debian's and Ubuntu's have some (1.1build1).

    Raises:
        InstallError: The base image has no pip.
    """
    try:
        from pip._vendor.packaging.version import InvalidVersion, Version
    except ImportError:
        raise InstallError(
            f"{sys.executable} of the base image has the framework, but no pip to install anything beside it:"
            " install pip there (python3 -m ensurepip)"
        ) from None
    found = []
    for name, version in present.items():
        try:
            Version(version)
        except InvalidVersion:
            continue
        found.append(f"{name}=={version}")
    return found


def conflicts(python: str) -> set[str]:
    """Give what pip says of packages of an interpreter that do not fit each other, a line each."""
    done = subprocess.run([python, "-m", "pip", "check"], check=False, stdout=subprocess.PIPE, text=True)
    return set(done.stdout.splitlines()) if done.returncode else set()


def cuda_packages(report: object, framework: str) -> list[str]:
    """Give the packages of CUDA that a framework needs, by pip's report of what it would install."""
    assert isinstance(report, dict)
    for item in report["install"]:
        metadata = item["metadata"]
        if name_of(metadata["name"]) == framework:
            needs = map(name_of, metadata.get("requires_dist", []))
            return sorted({need for need in needs if need.startswith(("nvidia-", "cuda-", "triton"))})
    return []


def check_build(found: Sequence[str], requirement: str, cuda: bool) -> None:
    """Refuse a build of a framework for CUDA that was not asked for: gigabytes; and one without that was.

    Raises:
        InstallError: It is not the one asked for.
    """
    if found and not cuda:
        raise InstallError(
            f"pip would take a build of {requirement} for CUDA, gigabytes in {len(found)} packages "
            f"({', '.join(found[:3])}, ...), but CUDA=0: give PIP_EXTRA_INDEX_URL=ADDRESS, the index of "
            "builds for CPUs that the framework's install page names, or CUDA=1"
        )
    if cuda and not found:
        raise InstallError(
            f"pip would take a build of {requirement} without CUDA, but CUDA=1: leave out the index of "
            "builds for CPUs (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS), or give the index of builds for your CUDA"
        )


def pip(python: str, *words: str | Path) -> None:
    """Run pip of an interpreter."""
    command = [python, "-m", "pip", "install", "--no-cache-dir", *map(str, words)]
    print("[smdp]", *command, flush=True)
    if subprocess.run(command, check=False).returncode:
        raise InstallError(f"pip failed, see above: {' '.join(map(str, words))}")


def look_before(python: str, requirement: str, cuda: bool) -> None:
    """Ask pip which build of a framework it would take; an index with metadata sends no more than that."""
    command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed"]
    done = subprocess.run(
        [*command, "--no-cache-dir", "--only-binary=:all:", "--report=-", requirement],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise InstallError(
            f"pip finds no wheel of {requirement} for Python {platform.python_version()}, see above"
        )
    check_build(cuda_packages(json.loads(done.stdout), name_of(requirement)), requirement, cuda)


def requirements_of(folder: Path, cuda: bool) -> list[str]:
    """Give what the image in `folder` is made for."""
    file = folder / "requirements-cuda.txt"
    return read_requirements(file if cuda and file.exists() else folder / "requirements.txt")


def install_image(folder: Path, cuda: bool) -> None:
    """Install smdp and what the image in `folder` is made for."""
    requirements = requirements_of(folder, cuda)
    constraints = read_requirements(HERE / "constraints.txt")
    present = installed("python3")
    python = "python3"
    if kept := [
        f"{name} {present[name]}" for name in FRAMEWORKS if name in present and _is_wanted(name, requirements)
    ]:
        # What the framework was built with stays too: another NumPy could be another ABI.
        print(f"[smdp] the base image has {kept[0]}: kept, and packages are installed beside it", flush=True)
        if present.pop("smdp", None):  # another build of it may have the same version, and would stay
            subprocess.run([python, "-m", "pip", "uninstall", "--yes", "smdp"], check=True)
        requirements = without(requirements, [*present, *FRAMEWORKS])
        constraints = without(constraints, present) + pins(present)
    else:
        subprocess.run(["python3", "-m", "venv", str(VENV)], check=True)
        python = str(VENV / "bin" / "python")
        # First: that of Ubuntu 22.04 does not know what is asked of it below.
        pip(python, "-c", HERE / "constraints.txt", "--upgrade", "pip", "setuptools")
        for requirement in requirements:
            if name_of(requirement) == "torch":
                look_before(python, requirement, cuda)
    _install(python, [*requirements, *map(str, sorted(WHEELS.glob("smdp-*.whl")))], constraints)


def _is_wanted(framework: str, requirements: Iterable[str]) -> bool:
    """Whether the framework, or its other build, is among what the image is made for."""
    return any(
        name_of(requirement).partition("-")[0] == framework.partition("-")[0] for requirement in requirements
    )


def _install(python: str, requirements: Sequence[str], constraints: Sequence[str]) -> None:
    lock = Path("/tmp/constraints.txt")
    lock.write_text("\n".join(constraints), encoding="utf-8")
    before = conflicts(python)  # what a base brings along is not ours to judge
    pip(python, "--only-binary=:all:", "--find-links", WHEELS, "-c", lock, *requirements)
    lock.unlink()
    if new := sorted(conflicts(python) - before):
        raise InstallError(f"packages of the image do not fit each other: {'; '.join(new)}")


def check_framework(folder: Path) -> None:
    """Raises InstallError where there is no image of that name."""
    if (folder / "requirements.txt").is_file():
        return
    known = sorted(path.parent.name for path in folder.parent.glob("*/requirements.txt"))
    raise InstallError(f"FRAMEWORK={folder.name} is not valid; allowed: {', '.join(known)}")


def main() -> None:
    """Install as the command line says; a message and exit code 78 when it cannot be done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--cuda", default="0")
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    # The system's Python of an image with the framework is ours to add to.
    os.environ["PIP_BREAK_SYSTEM_PACKAGES"] = "1"
    os.environ["PIP_ROOT_USER_ACTION"] = "ignore"
    try:
        if options.cuda not in ("0", "1"):
            raise InstallError(f"CUDA={options.cuda} is not valid; allowed: 0, 1")
        if options.folder is not None:
            check_framework(options.folder)
            install_image(options.folder, options.cuda == "1")
        if options.file is not None:
            present = installed("python3")
            more = without(read_requirements(HERE / "constraints.txt"), present)
            _install("python3", read_requirements(options.file), pins(present) + more)
    except InstallError as error:
        print(f"[smdp] {error}.", file=sys.stderr)
        sys.exit(78)


if __name__ == "__main__":
    main()
