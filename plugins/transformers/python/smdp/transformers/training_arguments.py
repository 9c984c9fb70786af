"""transformers.TrainingArguments with the backend "smdp"."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

import smdp.accelerate
from smdp.accelerate.partial_state import default_timeout
from smdp.environments.torch_variables import set_torch_variables


def _metadata() -> dict[str, Any]:
    fields = {one.name: one for one in dataclasses.fields(transformers.TrainingArguments)}
    metadata = dict(fields["ddp_backend"].metadata)
    metadata["choices"] = ["smdp", *metadata.get("choices", ())]
    metadata["help"] = "The backend of torch.distributed. The default is smdp on machines without a GPU."
    return metadata


def _prepare(args: Any) -> None:
    allowed = _metadata()["choices"]
    if args.ddp_backend is not None and args.ddp_backend not in allowed:
        raise ValueError(f"[smdp] ddp_backend is {args.ddp_backend!r}; allowed: {', '.join(allowed)}.")
    # Accelerate reads only torchrun's variables, and on CPUs some of MPI's. Without this, each rank under any
    # other launcher would train alone.
    is_alone = not set_torch_variables()
    has_device = torch.accelerator.is_available()
    uses_cpu = args.use_cpu or not has_device
    if args.ddp_backend is None and uses_cpu:
        args.ddp_backend = "smdp"
    if args.ddp_backend == "smdp":
        smdp.accelerate.install()
    elif uses_cpu and args.ddp_backend == "nccl":
        raise ValueError(
            "[smdp] ddp_backend is 'nccl', which needs GPUs, but there is no GPU to use. Remove it, or pass"
            ' "smdp" or "gloo".'
        )
    elif uses_cpu and is_alone and not torch.distributed.is_initialized():
        args.ddp_backend = None  # else Accelerate would look for a group that does not exist
    # Without a GPU, transformers and Accelerate train each rank alone unless use_cpu is set.
    args.use_cpu = uses_cpu


@dataclass
class TrainingArguments(transformers.TrainingArguments):
    """transformers.TrainingArguments with the additional `ddp_backend` "smdp".

    On machines without a GPU it is the default, in place of gloo.
    """

    ddp_backend: str | None = field(default=None, metadata=_metadata())

    def __post_init__(self) -> None:
        _prepare(self)
        with default_timeout(self.ddp_timeout_delta):
            super().__post_init__()


@dataclass
class Seq2SeqTrainingArguments(transformers.Seq2SeqTrainingArguments):
    """transformers.Seq2SeqTrainingArguments with the additional `ddp_backend` "smdp"."""

    ddp_backend: str | None = field(default=None, metadata=_metadata())

    def __post_init__(self) -> None:
        _prepare(self)
        with default_timeout(self.ddp_timeout_delta):
            super().__post_init__()
