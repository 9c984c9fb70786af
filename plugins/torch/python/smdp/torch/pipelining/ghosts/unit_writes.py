"""Detects weights that a unit's forward changes, while the unit runs on placeholders."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from smdp.torch.pipelining.tensors.containers import tensors_in
from smdp.torch.pipelining.tensors.functions import BOUNDING, LOOKUPS, name_of
from smdp.torch.pipelining.tensors.values import memory_of


class UnitWrites(TorchDispatchMode):
    """Detects weights that are changed in place, or through their `.data` other than to bound them.

    Args:
        weights: Placeholders for the unit's weights, by name.
    """

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self._weights = weights
        self._versions = {name: ghost._version for name, ghost in weights.items()}
        self._dtypes = {name: ghost.dtype for name, ghost in weights.items()}
        self._memory = {memory_of(ghost): name for name, ghost in weights.items()}
        self._bounded: list[Tensor] = []
        self._found = ""

    def first(self) -> str:
        """Returns the name of a changed weight, or an empty string."""
        return self._found or next(filter(self._has_changed, self._weights), "")

    def _has_changed(self, name: str) -> bool:
        ghost = self._weights[name]
        if ghost._version != self._versions[name]:
            return True
        # The weight has a new .data. Casts and bounds are allowed, as they are equal in every microbatch.
        known = {other for memory, other in self._memory.items() if memory == memory_of(ghost)}
        known |= {name for bounded in self._bounded if memory_of(bounded) == memory_of(ghost)}
        return name not in known and ghost.dtype == self._dtypes[name]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = name_of(func.overloadpacket).removesuffix("_")
        if name in BOUNDING or name in LOOKUPS:
            weight = self._weight(args[0])
            if weight and name in BOUNDING:
                self._bounded += tensors_in(result)
            elif weight and func._schema.is_mutable:
                self._versions[weight] += 1  # autograd is about to count this change
        elif func._schema.is_mutable:
            arguments = zip(func._schema.arguments, args, strict=False)
            written = [given for argument, given in arguments if argument.is_write]
            for tensor in tensors_in((written, (kwargs or {}).get("out"))):
                self._found = self._found or self._weight(tensor)
        return result

    def _weight(self, tensor: Tensor) -> str:
        return self._memory.get(memory_of(tensor), "")
