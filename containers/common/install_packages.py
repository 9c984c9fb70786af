#!/usr/bin/env python3
"""The final stage: installs Python packages, only from wheels, so that no compiler is needed.

    install_packages.py FOLDER [--cuda 0|1]     installs FOLDER/requirements.txt and smdp
    install_packages.py --file FILE             installs more packages into an image

Packages are installed into /opt/smdp/venv. If the base image has the framework, as Amazon's and NVIDIA's
images do, they are installed next to it, and the framework stays unchanged. The python3 of the base image
runs this program.
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
    """A problem with the base image, the registry or an argument, and what to do."""


def name_of(requirement: str) -> str:
    """Returns the normalized name of a requirement: "ml-dtypes" for "ml_dtypes==0.6; extra == 'x'"."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    return re.sub(r"[-_.]+", "-", match.group()).lower() if match else ""


def read_requirements(path: Path) -> list[str]:
    """Returns the requirements of a file and of the files that it includes with -r."""
    found: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text.startswith("-r "):
            found += read_requirements(path.parent / text[3:].strip())
        elif text:
            found.append(text)
    return found


def without(requirements: Iterable[str], present: Iterable[str]) -> list[str]:
    """Returns the requirements whose names are not in `present`."""
    names = set(present)
    return [requirement for requirement in requirements if name_of(requirement) not in names]


def installed(python: str) -> dict[str, str]:
    """Returns the packages of an interpreter with their versions."""
    code = (
        "import importlib.metadata as m, json; "
        "print(json.dumps([[d.metadata['Name'], d.version] for d in m.distributions()]))"
    )
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    return {name_of(name): version for name, version in json.loads(done.stdout) if name}


def pins(present: Mapping[str, str]) -> list[str]:
    """Returns constraints that keep the installed packages unchanged.

    Versions that pip cannot parse are left out. Some packages of Debian and Ubuntu have them (1.1build1).

    Raises:
        InstallError: The base image has no pip.
    """
    try:
        from pip._vendor.packaging.version import InvalidVersion, Version
    except ImportError:
        raise InstallError(
            f"{sys.executable} of the base image has the framework, but no pip to install other packages:"
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
    """Returns pip's messages about incompatible packages of an interpreter, one line each."""
    done = subprocess.run([python, "-m", "pip", "check"], check=False, stdout=subprocess.PIPE, text=True)
    return set(done.stdout.splitlines()) if done.returncode else set()


def cuda_packages(report: object, framework: str) -> list[str]:
    """Returns the CUDA packages that a framework needs, from pip's report of what it would install."""
    assert isinstance(report, dict)
    for item in report["install"]:
        metadata = item["metadata"]
        if name_of(metadata["name"]) == framework:
            needs = map(name_of, metadata.get("requires_dist", []))
            return sorted({need for need in needs if need.startswith(("nvidia-", "cuda-", "triton"))})
    return []


def check_build(found: Sequence[str], requirement: str, cuda: bool) -> None:
    """Checks that a framework's build is for CUDA, which takes gigabytes, if and only if that was asked for.

    Raises:
        InstallError: It is the other build.
    """
    if found and not cuda:
        raise InstallError(
            f"pip would install a build of {requirement} for CUDA, gigabytes in {len(found)} packages "
            f"({', '.join(found[:3])}, ...), but CUDA=0: set PIP_EXTRA_INDEX_URL=ADDRESS to the index of "
            "CPU builds that the framework's install page names, or set CUDA=1"
        )
    if cuda and not found:
        raise InstallError(
            f"pip would install a build of {requirement} without CUDA, but CUDA=1: remove the index of CPU "
            "builds (PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS), or set the index of builds for your CUDA version"
        )


def pip(python: str, *words: str | Path) -> None:
    """Runs pip install with an interpreter."""
    command = [python, "-m", "pip", "install", "--no-cache-dir", *map(str, words)]
    print("[smdp]", *command, flush=True)
    if subprocess.run(command, check=False).returncode:
        raise InstallError(f"pip failed, see above: {' '.join(map(str, words))}")


def look_before(python: str, requirement: str, cuda: bool) -> None:
    """Checks which build of a framework pip would install. Most indexes send only metadata for this."""
    command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed"]
    done = subprocess.run(
        [*command, "--no-cache-dir", "--only-binary=:all:", "--report=-", requirement],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise InstallError(
            f"pip found no wheel of {requirement} for Python {platform.python_version()}, see above"
        )
    check_build(cuda_packages(json.loads(done.stdout), name_of(requirement)), requirement, cuda)


def requirements_of(folder: Path, cuda: bool) -> list[str]:
    """Returns the requirements of the image in `folder`."""
    file = folder / "requirements-cuda.txt"
    return read_requirements(file if cuda and file.exists() else folder / "requirements.txt")


def install_image(folder: Path, cuda: bool) -> None:
    """Installs smdp and the requirements of the image in `folder`."""
    requirements = requirements_of(folder, cuda)
    constraints = read_requirements(HERE / "constraints.txt")
    present = installed("python3")
    python = "python3"
    if kept := [
        f"{name} {present[name]}" for name in FRAMEWORKS if name in present and _is_wanted(name, requirements)
    ]:
        # The framework's dependencies also stay: another version of NumPy could have another ABI.
        print(f"[smdp] the base image has {kept[0]}: it is kept, packages go next to it", flush=True)
        if present.pop("smdp", None):  # another build with the same version would not be replaced
            subprocess.run([python, "-m", "pip", "uninstall", "--yes", "smdp"], check=True)
        requirements = without(requirements, [*present, *FRAMEWORKS])
        constraints = without(constraints, present) + pins(present)
    else:
        subprocess.run(["python3", "-m", "venv", str(VENV)], check=True)
        python = str(VENV / "bin" / "python")
        # First, because Ubuntu 22.04's pip does not support the options below.
        pip(python, "-c", HERE / "constraints.txt", "--upgrade", "pip", "setuptools")
        for requirement in requirements:
            if name_of(requirement) == "torch":
                look_before(python, requirement, cuda)
    _install(python, [*requirements, *map(str, sorted(WHEELS.glob("smdp-*.whl")))], constraints)


def _is_wanted(framework: str, requirements: Iterable[str]) -> bool:
    """Returns whether the framework, or another build of it, is in the requirements of the image."""
    return any(
        name_of(requirement).partition("-")[0] == framework.partition("-")[0] for requirement in requirements
    )


def _install(python: str, requirements: Sequence[str], constraints: Sequence[str]) -> None:
    lock = Path("/tmp/constraints.txt")
    lock.write_text("\n".join(constraints), encoding="utf-8")
    before = conflicts(python)  # conflicts of the base image itself are ignored
    pip(python, "--only-binary=:all:", "--find-links", WHEELS, "-c", lock, *requirements)
    lock.unlink()
    if new := sorted(conflicts(python) - before):
        raise InstallError(f"packages of the image are incompatible: {'; '.join(new)}")


def check_framework(folder: Path) -> None:
    """Checks that an image with this name exists.

    Raises:
        InstallError: It does not.
    """
    if (folder / "requirements.txt").is_file():
        return
    known = sorted(path.parent.name for path in folder.parent.glob("*/requirements.txt"))
    raise InstallError(f"FRAMEWORK={folder.name} is not valid; allowed: {', '.join(known)}")


def main() -> None:
    """Runs the command line. If it fails, prints a message and exits with code 78."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--cuda", default="0")
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    # In an image with the framework, packages are added to the system's Python.
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
