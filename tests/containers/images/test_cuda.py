"""CUDA=1: the packages of CUDA are in the image, and a job runs in it, on CPUs where there is no GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from buildah import ROOT, Storage
from container import Container
from image import build
from jobs import ENVIRON, JOBS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
# The framework is a build for CUDA, and what it loads on a machine with a GPU is there.
HAS_CUDA = {
    "torch": """
import torch
assert torch.version.cuda and torch.distributed.is_nccl_available()
""",
    "tensorflow": """
import importlib.metadata, tensorflow
assert tensorflow.test.is_built_with_cuda()
for name in ("cudnn", "nccl", "cublas"):
    importlib.metadata.version(f"nvidia-{name}-cu12")
""",
}


@pytest.mark.parametrize("name", ["pytorch", "tensorflow", "huggingface"])
def test_an_image_with_cuda(
    name: str, storage: Storage, base: str, containers: Callable[..., Container], site: Path
) -> None:
    """Without layers of their own: each would be a copy of gigabytes."""
    tag = f"smdp-{name}-cuda"
    image = build(storage, name, "runtime", tag, "--layers=false", BASE_IMAGE=base, CUDA="1")
    try:
        framework = "tensorflow" if name == "tensorflow" else "torch"
        code, output = containers(image).run("python3", "-c", HAS_CUDA[framework], timeout_s=300)
        assert code == 0, output

        assert containers(image).run("smdp", "env", "--check") == (0, "")

        container = containers(image, volumes={"/repository": ROOT, "/site": site})
        command = ("smdp", "run", "-n", "2", *JOBS[name])
        code, output = container.run(*command, environ=ENVIRON, timeout_s=900)
        assert code == 0, output
        assert "[rank 1]" in output or "2 ranks" in output
    finally:
        storage.remove(image.tag)
