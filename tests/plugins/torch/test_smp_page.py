"""The page "Moving from SageMaker Model Parallel": it names all that is there, and its script runs."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from pathlib import Path
from typing import Any

from torch_spawn import run

import smdp.torch.model_parallel as smp
from smdp.torch.model_parallel.smp_api import configuration
from smdp.torch.model_parallel.smp_api.configuration import Configuration
from smdp.torch.model_parallel.smp_api.later import _LATER

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "sagemaker_model_parallel.md").read_text(
    encoding="utf-8"
)
NAMES = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", " ".join(re.findall(r"`([^`\n]+)`", PAGE))))
# smdp's own, told on other pages.
OURS = {"PipelinedModule", "GradScaler", "clip_grad_norm_", "delayed_initialization", "pipeline"}
OURS |= {"annotations", "Any", "find_later"}  # imported


def test_every_key_has_its_line() -> None:
    keys = {field.name for field in dataclasses.fields(Configuration)}
    assert keys | {"pipeline_parallel_degree"} | set(configuration._IGNORED) <= NAMES


def test_every_name_has_its_line() -> None:
    public = {name for name, value in vars(smp).items() if not name.startswith("_") and not _is_file(value)}
    classes = [smp.DistributedModel, *smp.DistributedModel.__bases__]
    members = {name for each in classes for name in vars(each) if not name.startswith("_")}
    inherited = {"forward", "train", "named_parameters", "named_buffers", "named_modules", "pipe", "run_step"}
    inherited |= {"check_not_in_step"}
    outputs = {name for name in vars(smp.StepOutput) if not name.startswith("_")}
    arguments = set(inspect.signature(smp.DistributedModel).parameters) - {"module"}
    expected = (public - OURS) | (members - inherited) | outputs | arguments
    assert expected - NAMES == set()
    assert set(_LATER) <= NAMES


def _is_file(value: Any) -> bool:
    return inspect.ismodule(value) and value is not smp.amp


def run_script() -> None:
    os.chdir(os.environ["SMDP_TEST_FOLDER"])
    script = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    exec(compile(script, "page", "exec"), {})
    smp.barrier()
    assert Path("checkpoints", "newest").read_text() == "step3"
    assert len(list(Path("checkpoints", "step3_partial").iterdir())) == 6


def test_its_script_runs() -> None:
    outputs = run(run_script, 2)
    losses = [float(line.split()[0]) for line in outputs[0].splitlines() if "torch.Size([32, 10])" in line]
    assert len(losses) == 3 and losses[2] < losses[0]
