"""torch.compile needs a compiler: without one the error says so, with WITH_COMPILER=1 it works."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from buildah import Storage
from container import Container
from image import Image, build

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
PROGRAM = """
import torch
f = torch.compile(lambda x: (x.sin() + 1).sum())
x = torch.arange(1000.0)
assert torch.allclose(f(x), (x.sin() + 1).sum())
print("compiled")
"""


def test_without_a_compiler_the_error_says_so(image: Image, containers: Callable[..., Container]) -> None:
    if image.name == "tensorflow":
        pytest.skip("no torch in this image")
    code, output = containers(image).run("python3", "-c", PROGRAM)
    assert code == 1
    assert "No working C++ compiler found" in output


def test_with_a_compiler(storage: Storage, base: str, containers: Callable[..., Container]) -> None:
    image = build(storage, "pytorch", "runtime", "smdp-pytorch-compiler", BASE_IMAGE=base, WITH_COMPILER="1")
    code, output = containers(image).run("python3", "-c", PROGRAM)
    assert (code, output) == (0, "compiled\n")
    storage.remove(image.tag)
