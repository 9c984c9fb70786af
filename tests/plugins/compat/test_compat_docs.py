"""The pages name everything that is there."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

# What these modules import for themselves; oob_allreduce is SMDDP's, not Horovod's.
HELPERS = {
    "annotations",
    "NoReturn",
    "set_torch_variables",
    "no_attribute",
    "oob_allreduce",
    "DType",
    "check_comm",
    "sets_of",
}
DOCS = Path(__file__).resolve().parents[3] / "docs"


def public_names(module_name: str) -> list[str]:
    module = importlib.import_module(module_name)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and name not in HELPERS
        # torch's Tensor, say, which an annotation needs.
        and getattr(value, "__module__", "smdp").startswith("smdp")
    ]


@pytest.mark.parametrize(
    ("framework", "module", "page"),
    [
        ("torch", "smdp.compat.horovod.torch", "horovod.md"),
        ("torch", "smdp.compat.sagemaker.dataparallel.torch.distributed", "sagemaker.md"),
        ("tensorflow", "smdp.compat.horovod.tensorflow", "horovod.md"),
        ("tensorflow", "smdp.compat.horovod.tensorflow.keras", "horovod.md"),
        ("tensorflow", "smdp.compat.horovod.keras", "horovod.md"),
        ("tensorflow", "smdp.compat.sagemaker.dataparallel.tensorflow", "sagemaker.md"),
        ("numpy", "smdp.compat.sagemaker.dataparallel", "sagemaker.md"),
        ("numpy", "smdp.compat.sagemaker.dataparallel.exceptions", "sagemaker.md"),
        ("numpy", "smdp.compat.sagemaker.dataparallel.smddpcommon", "sagemaker.md"),
    ],
)
def test_every_name_has_its_line(framework: str, module: str, page: str) -> None:
    """As a word between backticks: `size` is not named by `local_size`."""
    pytest.importorskip(framework, None if framework == "numpy" else "2")
    prose = re.sub(r"```.*?```", "", (DOCS / page).read_text(), flags=re.DOTALL)
    quoted = re.findall(r"`([^`]+)`", prose)
    words = {word for text in quoted for word in re.findall(r"\w+", text)}
    missing = [name for name in public_names(module) if name not in words]
    assert missing == []
