"""Tracks which values travel from one unit's call to a later one while a model runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_MARK = "_smdp_value"
_GLUE = -1  # owner of glue parameters, which are on every stage that uses them


@dataclass(slots=True)
class _Value:
    owner: int
    last: int
    nbytes: int = 0


class ValueFlow(TorchDispatchMode):
    """Tracks values through the operations between units.

    A value is a storage, and belongs to the unit call that returned it. The result of an operation between
    units belongs to the latest owner of its inputs, and the operation consumes the other inputs there, as in
    a pipeline. The bytes of a cut are therefore those of the values that are created before it and consumed
    after it, each counted once. Tensors in objects that torch's pytrees do not know, such as caches, are not
    tracked.
    """

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0  # number of nested calls of units, whose operations are not tracked
        self._values: list[_Value] = []

    def stems_from_parameters(self, tensor: Tensor) -> bool:
        """Returns whether a tensor is derived from a unit or a glue parameter, and so has a gradient."""
        return self._value(tensor) is not None

    def begin(self, parameters: Iterable[nn.Parameter]) -> None:
        """Marks glue parameters."""
        for parameter in parameters:
            self._give(parameter, _GLUE)

    def end(self, parameters: Iterable[nn.Parameter]) -> None:
        """Removes the marks of glue parameters."""
        for parameter in parameters:
            delattr(parameter.untyped_storage(), _MARK)

    def enter(self, call: int, inputs: Any) -> None:
        """Marks the beginning of a unit's call; calls are numbered in execution order."""
        for tensor in _tensors(inputs):
            self._consume(tensor, call)
        self.depth += 1

    def leave(self, call: int, outputs: Any) -> None:
        """Marks the end of a unit's call."""
        self.depth -= 1
        for tensor in _tensors(outputs):
            if self._value(tensor) is None:  # otherwise the unit passed it through
                self._give(tensor, call)

    def cut_bytes(self, call: int) -> int:
        """Returns the bytes that cross a cut directly after a call, in the forward direction."""
        return sum(value.nbytes for value in self._values if 0 <= value.owner <= call < value.last)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.depth > 0:
            return result
        inputs = [tensor for tensor in _tensors((args, kwargs)) if self._value(tensor) is not None]
        if not inputs:
            return result
        owner = max(value.owner for tensor in inputs if (value := self._value(tensor)) is not None)
        for tensor in inputs:
            self._consume(tensor, owner)
        for tensor in _tensors(result):
            value = self._value(tensor)
            if value is None or value.owner < owner:  # new, or changed in place
                self._give(tensor, owner)
        return result

    def _value(self, tensor: Tensor) -> _Value | None:
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return None  # inside torch.vmap a tensor has no storage; transformers 4 creates masks this way
        # torch keeps the Python object of a storage alive as long as the storage.
        flow, value = getattr(tensor.untyped_storage(), _MARK, (None, None))
        return value if flow is self else None

    def _give(self, tensor: Tensor, owner: int) -> None:
        value = _Value(owner, owner)
        self._values.append(value)
        setattr(tensor.untyped_storage(), _MARK, (self, value))

    def _consume(self, tensor: Tensor, at: int) -> None:
        value = self._value(tensor)
        if value is not None and at > value.owner:
            value.last = max(value.last, at)
            value.nbytes = max(value.nbytes, min(tensor.nbytes, tensor.untyped_storage().nbytes()))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
