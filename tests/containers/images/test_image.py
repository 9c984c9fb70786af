"""What a built image holds, and what it does not."""

from __future__ import annotations

import json
import re
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from buildah import ROOT
from container import Container
from image import Image

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]  # the first test of an image waits for its build
COMPILERS = re.compile(
    r"(.*-)?(gcc|g\+\+|cc|c\+\+|clang|clang\+\+|cc1|cc1plus|ld|as|nvcc|gfortran)(-[\d.]+)?"
)
PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/]{40}")


def files(root: Path) -> Iterator[Path]:
    for folder in ("etc", "home", "opt", "root", "usr", "var", "workspace"):
        for path in (root / folder).rglob("*"):
            if stat.S_ISREG(path.lstat().st_mode):
                yield path


def test_labels_user_and_entry_point(image: Image) -> None:
    config = image.config
    assert config["User"] == "1000"
    assert config["Entrypoint"] == ["/usr/bin/tini", "--", "/opt/smdp/entrypoint.sh"]
    assert config["Healthcheck"]["Test"] == ["CMD", "smdp", "env", "--check"]
    labels = {name.rpartition(".")[2]: value for name, value in config["Labels"].items()}
    assert labels["title"] == f"smdp-{image.name}"
    assert labels["licenses"] == "Apache-2.0"
    assert labels["name"] == "localhost/smdp-base"


def test_no_compiler(image: Image) -> None:
    found = [
        path for path in files(image.root) if COMPILERS.fullmatch(path.name) and path.stat().st_mode & 0o111
    ]
    assert found == []


def test_no_key(image: Image) -> None:
    """No host key, no key of a user, and nothing anywhere that begins like one."""
    assert list((image.root / "etc" / "ssh").glob("ssh_host_*")) == []
    assert list((image.root / "home").rglob("id_*")) == []
    found = [
        path
        for path in files(image.root)
        if path.stat().st_size < 1 << 20 and PRIVATE_KEY.search(path.read_bytes())
    ]
    assert found == []


def test_no_lists_of_packages_and_no_secret_of_the_build(image: Image) -> None:
    assert list((image.root / "var/lib/apt/lists").glob("*_Packages*")) == []
    configuration = image.root / "etc" / "pip.conf"
    assert not configuration.exists() or configuration.stat().st_size == 0


def test_every_package_is_pinned(image: Image, containers: Callable[..., Container]) -> None:
    code, output = containers(image).run(
        "python3", "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"
    )
    assert code == 0, output
    pins = {"smdp"}
    for path in (ROOT / "containers").glob("*/*.txt"):
        for line in path.read_text().splitlines():
            if match := re.match(r"([\w.-]+)(\[.*\])?==", line):
                pins.add(re.sub(r"[-_.]+", "-", match[1]).lower())
    names = {re.sub(r"[-_.]+", "-", package["name"]).lower() for package in json.loads(output)}
    assert names - pins == set()


def test_a_base_without_python_is_one_warning(image: Image) -> None:
    """The base that the tests make has none. The builder says it, and the final stage."""
    warning = "[smdp] warning: BASE_IMAGE has no python3. The distribution's is installed, which adds"
    printed = image.storage.printed[image.tag]
    assert printed.count(warning) in (1, 2)  # once where the builder stage came from the cache
