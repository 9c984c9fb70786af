"""Values that share memory: when one is changed in place, copies on other ranks are out of date."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from smdp.torch.pipelining.interpreter.plan import Operation
from smdp.torch.pipelining.tensors.values import Value, value_of


class Aliases:
    """Follows, while a program is recorded, which values share memory, and refuses to use outdated ones."""

    def __init__(self) -> None:
        self._groups: dict[int, list[Value]] = {}
        self._outdated: dict[int, str] = {}

    def note(self, operation: Operation, shares: Sequence[int], inputs: Sequence[Tensor]) -> None:
        """Take in one operation.

        Args:
            operation: With its values.
            shares: For each of the values, the input whose memory it shares; -1: none.
            inputs: Of the operation.

        Raises:
            ValueError: It changes a part of a value of an earlier stage.
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
            # A changed value of an earlier stage has become a copy.
            if source is None or (place in operation.changes and source.stage != value.stage):
                continue
            group = self._groups.setdefault(source.index, [source])
            if value not in group:
                group.append(value)
            self._groups[value.index] = group

    def check(self, value: Value, name: str) -> None:
        """Refuse an operation on a value whose contents are of before a change.

        Raises:
            ValueError: It is outdated.
        """
        if value.index in self._outdated:
            raise ValueError(_text(self._outdated[value.index], value, f", and {name} uses that afterwards"))

    def _change(self, operation: Operation, target: Value) -> None:
        for other in self._groups.get(target.index, ()):
            # Autograd makes a view anew from what has been changed.
            other.sources += tuple(operation.values)
            if other is target or (other.stage == operation.stage == target.stage):
                continue
            if other.needs_grad and target.stage == operation.stage:
                raise ValueError(_text(f"{operation.name} on stage {operation.stage}", other, ""))
            self._outdated[other.index] = f"{operation.name} on stage {operation.stage}"


def _text(change: str, value: Value, use: str) -> str:
    return (
        f"[smdp] {change} changes in place what shares memory with {value.text()} of"
        f" stage {value.stage}{use}."
        " That memory is on another rank. Write a new tensor (x = x + y), or change a clone()."
    )
