"""SMP's names that come later: they can be imported, and say so when they are used."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

TENSOR_PARALLELISM = "tensor parallelism"
_LATER = {
    "tp_register": TENSOR_PARALLELISM,
    "tp_register_with_module": TENSOR_PARALLELISM,
    "sharded_data_parallel_checkpoint": "sharded data parallelism",
}
_OPTIMIZERS = "fused optimizers"
# Whole modules: what each belongs to, and its names, or how they begin.
_MODULES = {
    "optimizers": (_OPTIMIZERS, ("FusedAdam", "FusedLAMB", "FusedLamb", "FusedNovoGrad")),
    "utils": (TENSOR_PARALLELISM, ("get_distribution_axis",)),
    "nn.huggingface": (TENSOR_PARALLELISM, ()),
    **{
        f"nn.huggingface.{model}": (TENSOR_PARALLELISM, ("translate_",))
        for model in ("bert", "gpt2", "gptj", "gptneo", "roberta")
    },
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


class LaterModule(ModuleType):
    """One of SMP's modules of which nothing is there yet.

    Args:
        name: After `smp.`.
    """

    def __init__(self, name: str) -> None:
        feature, self._names = _MODULES[name]
        super().__init__(name, f"Of {feature}; comes later.")
        self._feature = feature

    def __getattr__(self, name: str) -> Any:
        """Give what says that it comes later when it is used."""
        whole = f"{self.__name__}.{name}"
        if whole in _MODULES:
            return LaterModule(whole)
        if not name.startswith(self._names or "?"):
            raise AttributeError(f"[smdp] smp.{self.__name__} has no name {name!r}")
        return comes_later(whole, self._feature)


def find_later(name: str) -> Any:
    """Give one of SMP's names that are not there yet, to whom a module lacks it.

    Raises:
        AttributeError: SMP has no such name.
    """
    if name in _LATER:
        return comes_later(name, _LATER[name])
    if name in _MODULES:
        return LaterModule(name)
    raise AttributeError(f"[smdp] smdp.torch.model_parallel has no name {name!r}")
