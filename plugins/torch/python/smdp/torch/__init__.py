"""PyTorch plugin: the backend "smdp" of torch.distributed.

Example:
    >>> import torch.distributed as dist
    >>> import smdp.torch
    >>> dist.init_process_group("smdp")  # doctest: +SKIP
"""

from __future__ import annotations

import warnings

from smdp._frameworks import require

require("smdp.torch", "torch")

import torch

from smdp.torch._dynamo import hide_package
from smdp.torch.comm_hook import comm_hook as comm_hook
from smdp.torch.distributed_data_parallel import DistributedDataParallel as DistributedDataParallel
from smdp.torch.model_parallel import GradScaler as GradScaler
from smdp.torch.model_parallel import PipelinedModule as PipelinedModule
from smdp.torch.model_parallel import clip_grad_norm_ as clip_grad_norm_
from smdp.torch.model_parallel import delayed_initialization as delayed_initialization
from smdp.torch.model_parallel import pipeline as pipeline
from smdp.torch.process_group import ProcessGroupSmdp as ProcessGroupSmdp
from smdp.torch.register import register as register
from smdp.torch.spared_workers import spared_workers as spared_workers
from smdp.torch.step_in_forward import StepInForward as StepInForward
from smdp.torch.sync_batch_norm import SyncBatchNorm as SyncBatchNorm

_TRIED = ("2.13", "2.14", "2.15")

if ".".join(torch.__version__.split(".")[:2]) not in _TRIED:
    warnings.warn(
        f"smdp has been tried with torch {', '.join(_TRIED)}, not with {torch.__version__}; "
        "please report what you find",
        stacklevel=2,
    )

hide_package(__name__)
register()

__all__ = [
    "DistributedDataParallel",
    "GradScaler",
    "PipelinedModule",
    "ProcessGroupSmdp",
    "StepInForward",
    "SyncBatchNorm",
    "clip_grad_norm_",
    "comm_hook",
    "delayed_initialization",
    "pipeline",
    "register",
    "spared_workers",
]
