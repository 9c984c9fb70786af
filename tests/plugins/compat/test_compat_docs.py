"""The pages name everything that is there."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

# What these modules import for themselves; oob_allreduce is SMDDP's, not Horovod's.
HELPERS = {"annotations", "Any", "NoReturn", "set_torch_variables", "oob_allreduce"}
DOCS = Path(__file__).resolve().parents[3] / "docs"


def public_names(module_name: str) -> list[str]:
    module = importlib.import_module(module_name)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name not in HELPERS
    ]


@pytest.mark.parametrize(
    ("framework", "module", "page"),
    [
        ("torch", "smdp.compat.horovod.torch", "horovod.md"),
        ("torch", "smdp.compat.sagemaker.dataparallel.torch.distributed", "sagemaker.md"),
        ("tensorflow", "smdp.compat.horovod.tensorflow", "horovod.md"),
        ("tensorflow", "smdp.compat.horovod.tensorflow.keras", "horovod.md"),
        ("tensorflow", "smdp.compat.sagemaker.dataparallel.tensorflow", "sagemaker.md"),
    ],
)
def test_every_name_has_its_line(framework: str, module: str, page: str) -> None:
    pytest.importorskip(framework, "2")
    text = (DOCS / page).read_text()
    missing = [name for name in public_names(module) if name not in text]
    assert missing == []
