"""Values that share memory: after an in-place change of one, copies on other ranks are outdated."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from smdp.torch.pipelining.interpreter.plan import Operation
from smdp.torch.pipelining.tensors.values import Value, value_of


class Aliases:
    """Tracks, while a program is recorded, which values share memory, and rejects uses of outdated copies."""

    def __init__(self) -> None:
        self._groups: dict[int, list[Value]] = {}
        self._outdated: dict[int, str] = {}

    def note(self, operation: Operation, shares: Sequence[int], inputs: Sequence[Tensor]) -> None:
        """Tracks one operation.

        Args:
            operation: The operation with its values.
            shares: For each value, the index of the input whose memory it shares; -1 if there is none.
            inputs: The inputs of the operation.

        Raises:
            ValueError: The operation changes part of a value from an earlier stage.
        """
        for place in operation.changes:
            target = value_of(inputs[place])
            if target is not None:
                self._change(operation, target)
        given = {index for index, _ in operation.same}
        for index, (value, place) in enumerate(zip(operation.values, shares, strict=False)):
            if index in given:
                continue
            source = value_of(inputs[place]) if place >= 0 else None
            # A value of an earlier stage that was changed has become a copy.
            if source is None or (place in operation.changes and source.stage != value.stage):
                continue
            group = self._groups.setdefault(source.index, [source])
            if value not in group:
                group.append(value)
            self._groups[value.index] = group

    def check(self, value: Value, name: str) -> None:
        """Raises if an operation uses a value whose copy was made before a change.

        Raises:
            ValueError: The value is outdated.
        """
        if value.index in self._outdated:
            raise ValueError(
                _text(self._outdated[value.index], value, f", and {name} uses that value afterwards")
            )

    def _change(self, operation: Operation, target: Value) -> None:
        for other in self._groups.get(target.index, ()):
            # Autograd recreates a view from the changed value.
            other.sources += tuple(operation.values)
            if other is target or (other.stage == operation.stage == target.stage):
                continue
            if other.needs_grad and target.stage == operation.stage:
                raise ValueError(_text(f"{operation.name} on stage {operation.stage}", other, ""))
            self._outdated[other.index] = f"{operation.name} on stage {operation.stage}"


def _text(change: str, value: Value, use: str) -> str:
    return (
        f"[smdp] {change} changes in place memory that is shared with {value.text()} of"
        f" stage {value.stage}{use}."
        " That memory is on another rank. Create a new tensor (x = x + y), or change a clone()."
    )
