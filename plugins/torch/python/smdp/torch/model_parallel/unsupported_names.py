"""Names of SMP that smdp does not support yet: they can be imported, and raise when they are used."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

TENSOR_PARALLELISM = "tensor parallelism"
_LATER = {
    "sharded_data_parallel_checkpoint": "sharded data parallelism",
}
_OPTIMIZERS = "fused optimizers"
# Modules as a whole, with the feature that each belongs to, and its names or their prefixes.
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
    """Returns a class that raises when it is instantiated.

    Scripts often import more names of SMP than they use.

    Args:
        name: The name after `smp.`.
        feature: The feature that it belongs to.
    """

    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"[smdp] smp.{name} belongs to {feature}, which smdp does not support yet")

    return type(
        name.rpartition(".")[2],
        (),
        {"__init__": refuse, "__doc__": f"Belongs to {feature}, which smdp does not support yet."},
    )


class LaterModule(ModuleType):
    """A module of SMP that smdp does not support yet.

    Args:
        name: The name after `smp.`.
    """

    def __init__(self, name: str) -> None:
        feature, self._names = _MODULES[name]
        super().__init__(name, f"Belongs to {feature}, which smdp does not support yet.")
        self._feature = feature

    def __getattr__(self, name: str) -> Any:
        """Returns a class that raises when it is instantiated."""
        whole = f"{self.__name__}.{name}"
        if whole in _MODULES:
            return LaterModule(whole)
        if not name.startswith(self._names or "?"):
            raise AttributeError(f"[smdp] smp.{self.__name__} has no name {name!r}")
        return comes_later(whole, self._feature)


def find_later(name: str) -> Any:
    """Returns a stand-in for a name of SMP that smdp does not support yet.

    Args:
        name: The name after `smp.`.

    Raises:
        AttributeError: SMP has no such name.
    """
    if name in _LATER:
        return comes_later(name, _LATER[name])
    if name in _MODULES:
        return LaterModule(name)
    raise AttributeError(f"[smdp] smdp.torch.model_parallel has no name {name!r}")
