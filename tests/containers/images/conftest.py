"""Built images, and containers of them; all that was built is gone at the end."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from buildah import ROOT, Storage, why_not
from container import Container
from image import SIZES, Image, build

IMAGES = ("pytorch", "tensorflow", "huggingface")


@pytest.fixture(scope="session")
def storage() -> Iterator[Storage]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    directory = Path(tempfile.mkdtemp(prefix="smdp-images-", dir="/var/tmp"))
    found = Storage(directory)
    try:
        yield found
    finally:
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def base(storage: Storage) -> str:
    return storage.base()


@pytest.fixture(scope="session", params=IMAGES)
def image(request: pytest.FixtureRequest, storage: Storage, base: str) -> Iterator[Image]:
    """The target runtime of every image, one after the other: together they would take tens of gigabytes."""
    found = build(storage, request.param, "runtime", f"smdp-{request.param}", BASE_IMAGE=base)
    yield found
    storage.remove(found.tag)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the jobs of the tests need beside an image, in a folder that is mounted: scikit-learn and tqdm."""
    folder = tmp_path_factory.mktemp("site")
    folder.chmod(0o755)  # the image's user reads it, too
    constraints = ROOT / "containers" / "common" / "constraints.txt"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--only-binary=:all:",
        "--python-version=3.11",
    ]
    command += ["--constraint", str(constraints), "--target", str(folder), "scikit-learn", "tqdm"]
    subprocess.run(command, check=True, timeout=1200)
    return folder


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[Callable[..., Container]]:
    """Make containers of an image; what they wrote is gone after the test."""
    made: list[Container] = []

    def make(image: Image, **options: Any) -> Container:
        made.append(Container(image.root, image.config, tmp_path / "containers", **options))
        return made[-1]

    yield make
    for container in made:
        container.remove()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if SIZES:
        terminalreporter.section("sizes of the images")
        for line in SIZES:
            terminalreporter.line(line)
