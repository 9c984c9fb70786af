"""The page "Moving from SageMaker Model Parallel": it names all that is there."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import smdp.torch.model_parallel as smp
from smdp.torch.model_parallel.job import configuration
from smdp.torch.model_parallel.job.configuration import Configuration

PAGE = (Path(__file__).resolve().parents[5] / "docs" / "sagemaker_model_parallel.md").read_text(
    encoding="utf-8"
)
NAMES = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", " ".join(re.findall(r"`([^`\n]+)`", PAGE))))
# smdp's own, told on other pages.
OURS = {"PipelinedModule", "GradScaler", "clip_grad_norm_", "delayed_initialization", "pipeline"}
OURS |= {"annotations", "Any"}  # imported


def test_every_key_has_its_line() -> None:
    keys = {field.name for field in dataclasses.fields(Configuration)}
    assert keys | {"pipeline_parallel_degree"} | set(configuration._IGNORED) <= NAMES


def test_every_name_has_its_line() -> None:
    public = {name for name, value in vars(smp).items() if not name.startswith("_") and not _is_file(value)}
    classes = [each for each in smp.DistributedModel.__mro__ if each.__module__.startswith("smdp.")]
    members = {name for each in classes for name in vars(each) if not name.startswith("_")}
    inherited = {"forward", "train", "named_parameters", "named_buffers", "named_modules", "pipe", "run_step"}
    inherited |= {"agreed_inputs", "check_not_in_step", "finish_gradients", "shards", "averaging"}
    outputs = {name for name in vars(smp.StepOutput) if not name.startswith("_")}
    arguments = set(inspect.signature(smp.DistributedModel).parameters) - {"module"}
    expected = (public - OURS) | (members - inherited) | outputs | arguments
    assert expected - NAMES == set()


def _is_file(value: Any) -> bool:
    return inspect.ismodule(value) and value is not smp.amp
