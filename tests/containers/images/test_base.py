"""A base image that brings the framework, as Amazon's and NVIDIA's do: it stays, and smdp comes beside it.

The base is our own image, with what such images have grown: another build of smdp, a g++ that is too old, a
version of Debian's that pip would not read, and packages that do not fit each other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from buildah import ROOT, Storage
from container import Container
from image import Image, build
from jobs import ENVIRON, JOBS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
MAKE = Callable[..., Container]
# Debian's packages of Python lie in a folder of their own, which the framework's Python has in its path, too.
BASE = """
FROM localhost/smdp-pytorch
USER 0
RUN apt-get update -qq \\
    && apt-get install -y -qq --no-install-recommends g++-11 libc6-dev \\
    && ln -s g++-11 /usr/bin/g++ && ln -s gcc-11 /usr/bin/gcc \\
    && rm -rf /var/lib/apt/lists/*
COPY packages /usr/lib/debian-packages
RUN folder=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \\
    && echo /usr/lib/debian-packages >"$folder/debian.pth"
USER 1000
"""
TELL = "import torch, numpy; print(torch.__version__, torch.__file__, numpy.__version__)"


def add_package(folder: Path, name: str, version: str, *more: str) -> None:
    (folder / f"{name}-{version}.dist-info").mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *more, ""]
    (folder / f"{name}-{version}.dist-info" / "METADATA").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def brought(storage: Storage, base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image that is taken as a base."""
    file = ROOT / "containers" / "Dockerfile"
    storage.build(file, "smdp-pytorch", "--target", "runtime", BASE_IMAGE=base)  # of the cache, mostly
    folder = tmp_path_factory.mktemp("brought")
    add_package(folder / "packages", "distro_info", "1.1build1")
    add_package(folder / "packages", "needy", "1.0", "Requires-Dist: absent>=2")
    (folder / "Dockerfile").write_text(BASE)
    output = storage.build(folder / "Dockerfile", "smdp-brought", "--layers=false", context=folder)
    yield Image(storage, "pytorch", "smdp-brought", output)
    storage.remove("smdp-brought")


@pytest.fixture(scope="module")
def beside(storage: Storage, brought: Image) -> Iterator[Image]:
    on = f"localhost/{brought.tag}"
    found = build(storage, "pytorch", "runtime", "smdp-beside", "--layers=false", BASE_IMAGE=on)
    yield found
    storage.remove(found.tag)


def test_the_framework_of_the_base_stays(brought: Image, beside: Image, containers: MAKE) -> None:
    before, after = (containers(image).run("python3", "-c", TELL) for image in (brought, beside))
    assert before[0] == 0, before
    assert before == after
    assert "[smdp] the base image has torch 2." in beside.output
    assert "Successfully uninstalled smdp-" in beside.output
    done = containers(beside).run("python3", "-m", "pip", "check")
    assert done[0] == 1 and "needy 1.0 requires absent, which is not installed." in done[1], done


def test_its_old_compiler_is_left_aside(beside: Image) -> None:
    """The stage that compiles takes g++-12; the final one does not get it."""
    assert "is 11, but smdp needs 12 or newer: building with g++-12" in beside.output
    assert not (beside.root / "usr/bin/g++-12").exists()


def test_two_ranks_on_digits(beside: Image, containers: MAKE, site: Path) -> None:
    container = containers(beside, volumes={"/repository": ROOT, "/site": site})
    command = ("smdp", "run", "-n", "2", *JOBS["pytorch"])
    code, output = container.run(*command, environ=ENVIRON, timeout_s=1800)
    print(output)
    assert code == 0, output
    assert "[rank 1]" in output or "2 ranks" in output
