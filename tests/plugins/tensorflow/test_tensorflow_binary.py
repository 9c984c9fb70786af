"""One binary for every TensorFlow: what is loaded is the wheel's file, which knows no release."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

import smdp.tensorflow as sdp
from smdp import _core


def built_wheel() -> Path:
    for name in os.environ.get("TOX_PACKAGE", "").split(os.pathsep):
        if Path(name).name.startswith("smdp-") and name.endswith(".whl"):
            return Path(name)
    pytest.skip("tox tells which wheel it has installed; this is not run by tox")


def loaded(name: str) -> Path:
    """Give the file of this name that the process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    (found,) = {line.split(maxsplit=5)[5] for line in lines if line.endswith(f"/{name}")}
    return Path(found)


@pytest.mark.parametrize("name", ["libsmdp_tensorflow.so", "libsmdp.so", Path(_core.__file__).name])
def test_what_is_loaded_is_the_file_of_the_wheel(name: str) -> None:
    """Environments of one run share the wheel, so that those of other releases load the same bytes."""
    assert sdp.size  # loads the op library
    with zipfile.ZipFile(built_wheel()) as wheel:
        (member,) = [member for member in wheel.namelist() if member.endswith(f"/{name}")]
        built = hashlib.sha256(wheel.read(member)).hexdigest()
    assert hashlib.sha256(loaded(name).read_bytes()).hexdigest() == built


def test_the_op_library_asks_for_no_library_of_tensorflow() -> None:
    assert sdp.size
    content = loaded("libsmdp_tensorflow.so").read_bytes()
    assert b"libsmdp.so" in content
    assert b"libtensorflow" not in content
