"""The PyTorch plugin: the backend "smdp" of torch.distributed, data parallelism and pipelines.

Example:
    >>> import torch.distributed as dist
    >>> import smdp.torch
    >>> dist.init_process_group("smdp")  # doctest: +SKIP
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from smdp._frameworks import require

require("smdp.torch", "torch")

import torch

from smdp.torch.data_parallel.comm_hook import comm_hook as comm_hook
from smdp.torch.data_parallel.distributed_data_parallel import (
    DistributedDataParallel as DistributedDataParallel,
)
from smdp.torch.data_parallel.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
from smdp.torch.process_group._dynamo import hide_package
from smdp.torch.process_group.process_group import ProcessGroupSmdp as ProcessGroupSmdp
from smdp.torch.process_group.register import register as register

if TYPE_CHECKING:
    from smdp.torch.initialization.delayed_initialization import (
        delayed_initialization as delayed_initialization,
    )
    from smdp.torch.offload.offload_activations import offload_activations as offload_activations
    from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule as PipelinedModule
    from smdp.torch.pipelining.pipelined.pipelining import pipeline as pipeline
    from smdp.torch.precision.clipping import clip_grad_norm_ as clip_grad_norm_
    from smdp.torch.precision.gradient_scaler import GradScaler as GradScaler
    from smdp.torch.precision.loss_scales import DynamicLossScale as DynamicLossScale
    from smdp.torch.precision.lowered_model import lower_precision as lower_precision
    from smdp.torch.precision.mixed_precision import MixedPrecision as MixedPrecision
    from smdp.torch.preemption.spared_workers import spared_workers as spared_workers
    from smdp.torch.recompute.checkpoint_activations import checkpoint_activations as checkpoint_activations
    from smdp.torch.sharded_parameters.sharded_data_parallel import (
        ShardedDataParallel as ShardedDataParallel,
    )
    from smdp.torch.sharding.sharded_optimizer import ShardedOptimizer as ShardedOptimizer
    from smdp.torch.step_in_forward.step_in_forward import StepInForward as StepInForward
    from smdp.torch.tensor_parallelism.tensor_parallel import tensor_parallel as tensor_parallel
    from smdp.torch.tensor_parallelism.tensor_parallel import tensor_parallel_plan as tensor_parallel_plan

_TRIED = ("2.13", "2.14", "2.15")

# The modules of the other public names, which are imported on first use.
_MODULES = {
    "DynamicLossScale": "precision.loss_scales",
    "GradScaler": "precision.gradient_scaler",
    "MixedPrecision": "precision.mixed_precision",
    "PipelinedModule": "pipelining.pipelined.pipelined_module",
    "ShardedDataParallel": "sharded_parameters.sharded_data_parallel",
    "ShardedOptimizer": "sharding.sharded_optimizer",
    "StepInForward": "step_in_forward.step_in_forward",
    "checkpoint_activations": "recompute.checkpoint_activations",
    "clip_grad_norm_": "precision.clipping",
    "delayed_initialization": "initialization.delayed_initialization",
    "lower_precision": "precision.lowered_model",
    "offload_activations": "offload.offload_activations",
    "pipeline": "pipelining.pipelined.pipelining",
    "spared_workers": "preemption.spared_workers",
    "tensor_parallel": "tensor_parallelism.tensor_parallel",
    "tensor_parallel_plan": "tensor_parallelism.tensor_parallel",
}

if ".".join(torch.__version__.split(".")[:2]) not in _TRIED:
    warnings.warn(
        f"[smdp] smdp has been tested with torch {', '.join(_TRIED)}, but not with {torch.__version__}."
        " Please report any problems.",
        stacklevel=2,
    )

hide_package(__name__)
register()

__all__ = [
    "DistributedDataParallel",
    "DynamicLossScale",
    "GradScaler",
    "MixedPrecision",
    "PipelinedModule",
    "ProcessGroupSmdp",
    "ShardedDataParallel",
    "StepInForward",
    "SyncBatchNorm",
    "checkpoint_activations",
    "clip_grad_norm_",
    "comm_hook",
    "delayed_initialization",
    "lower_precision",
    "offload_activations",
    "pipeline",
    "register",
    "spared_workers",
    "tensor_parallel",
    "tensor_parallel_plan",
]


def __getattr__(name: str) -> Any:
    if name == "model_parallel":
        return import_module(f"{__name__}.model_parallel")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    hide_package(__name__)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
