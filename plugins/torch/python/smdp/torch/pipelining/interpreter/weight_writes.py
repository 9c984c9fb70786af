"""Rejects programs that change the model's parameters, because microbatches overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from smdp.torch.pipelining.ghosts.ghosts import Prediction
from smdp.torch.pipelining.interpreter.plan import Operation
from smdp.torch.pipelining.tensors.functions import BOUNDING, LOOKUPS, name_of
from smdp.torch.pipelining.tensors.values import value_of, weight_of
from smdp.torch.pipelining.units.unit_call import Unit

_SET_DATA = Tensor.data.__set__


class WeightWrites:
    """Tracks, while a program is recorded, which values share memory with parameters (`weight.data`)."""

    def __init__(self) -> None:
        self._weights: dict[int, str] = {}  # by index of the value
        self._bounded: dict[int, str] = {}

    def note(self, operation: Operation, predicted: Prediction, inputs: Sequence[Any]) -> None:
        """Tracks one operation.

        `weight.data.clamp_(...)`, `weight.data = weight.data.clamp(...)` and `max_norm` of embeddings are
        allowed.

        Args:
            operation: The operation with its values.
            predicted: The prediction of its results.
            inputs: The inputs of the operation.

        Raises:
            ValueError: The operation changes a parameter.
        """
        function, name = operation.function, operation.name
        if predicted.written and isinstance(function, Unit):
            raise ValueError(_text(name, f"{function.name}.{predicted.written}"))
        kind = name_of(function)
        if function == _SET_DATA and (weight := self._weight(inputs[0])):
            value = value_of(inputs[1])
            is_same = self._weight(inputs[1]) == weight  # such as a cast to the dtype that it already has
            if not is_same and (value is None or self._bounded.get(value.index) != weight):
                raise ValueError(_text(f"{name} of .data", weight))
        for place in operation.changes:
            weight = self._weight(inputs[place])
            is_direct = weight_of(inputs[place]) is not None
            is_bound = kind in LOOKUPS or (kind.removesuffix("_") in BOUNDING and not is_direct)
            if weight and not is_bound:
                raise ValueError(_text(name, weight))
        for value, place in zip(operation.values, predicted.shares, strict=False):
            if place >= 0 and (weight := self._weight(inputs[place])):
                self._weights[value.index] = weight
        if kind in BOUNDING and (weight := self._weight(inputs[0])):
            self._bounded |= dict.fromkeys((value.index for value in operation.values), weight)

    def _weight(self, tensor: Any) -> str:
        if (weight := weight_of(tensor)) is not None:
            return weight.name
        value = value_of(tensor)
        return "" if value is None else self._weights.get(value.index, "")


def _text(name: str, weight: str) -> str:
    return (
        f"[smdp] {name} changes parameter {weight!r} in place. Several microbatches are in flight at once,"
        " and the backward of each needs the parameter as its forward used it. Change the parameter after"
        " optimizer.step(), through the named_parameters() of the split model; use a changed copy, such as"
        " weight * mask; or make it a buffer if no gradient trains it. weight.data.clamp_() is allowed."
    )
