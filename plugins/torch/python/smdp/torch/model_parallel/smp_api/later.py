"""SMP's names that come later: they can be imported, and say so when they are used."""

from __future__ import annotations

from typing import Any, NoReturn

TENSOR_PARALLELISM = "tensor parallelism"
_CHECKPOINTING = "activation checkpointing"
_LATER = {
    "tp_register": TENSOR_PARALLELISM,
    "tp_register_with_module": TENSOR_PARALLELISM,
    "set_activation_checkpointing": _CHECKPOINTING,
    "sharded_data_parallel_checkpoint": "sharded data parallelism",
}


def comes_later(name: str, feature: str) -> type:
    """Give a class that stands for one of SMP's names: large scripts import more of them than they use.

    Args:
        name: After `smp.`.
        feature: What it belongs to.
    """

    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"[smdp] smp.{name} belongs to {feature}, which comes later")

    return type(name.rpartition(".")[2], (), {"__init__": refuse, "__doc__": f"Of {feature}; comes later."})


def find_later(name: str) -> type:
    """Give one of SMP's names that are not there yet, to whom a module lacks it.

    Raises:
        AttributeError: SMP has no such name.
    """
    if name in _LATER:
        return comes_later(name, _LATER[name])
    raise AttributeError(f"[smdp] smdp.torch.model_parallel has no name {name!r}")
