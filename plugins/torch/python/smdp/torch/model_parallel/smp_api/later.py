"""SMP's names that come later."""

from __future__ import annotations

from typing import Any

_TENSOR_PARALLELISM = "tensor parallelism"
_CHECKPOINTING = "activation checkpointing"
_LATER = {
    "nn": _TENSOR_PARALLELISM,
    "tp_register": _TENSOR_PARALLELISM,
    "tp_register_with_module": _TENSOR_PARALLELISM,
    "set_activation_checkpointing": _CHECKPOINTING,
    "patches": _CHECKPOINTING,
    "optimizers": "fused optimizers",
    "sharded_data_parallel_checkpoint": "sharded data parallelism",
}


def refuse(name: str) -> Any:
    """Raise the error of a module that lacks a name.

    Raises:
        AttributeError: Always; for a name of SMP's, with the feature that it belongs to.
    """
    if name in _LATER:
        raise AttributeError(f"[smdp] smp.{name} belongs to {_LATER[name]}, which comes later")
    raise AttributeError(f"[smdp] smdp.torch.model_parallel has no name {name!r}")
