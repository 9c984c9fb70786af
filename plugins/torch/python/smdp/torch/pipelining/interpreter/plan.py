"""The recording of one input signature: operations, values, and edges between stages."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from smdp.torch.pipelining.tensors.values import Value


class Kind(enum.Enum):
    """How an operation is executed."""

    GLUE = enum.auto()  # on its stage's rank
    UNIT = enum.auto()  # likewise, for a module that is never cut
    READ = enum.auto()  # on all ranks, with values that their owners send


@dataclass(slots=True)
class Operation:
    """A call in the program that uses a stage's value or parameter.

    Attributes:
        function: The called function; for a unit its original forward.
        kind: How the operation is executed.
        stage: The stage that executes it.
        result: The return value, with placeholders for tensors.
        draws: Whether it draws random numbers.
        name: The unit, or the function and the unit before it. The name also seeds random numbers.
        observed: (Name, output) of modules with hooks inside a unit, in the order in which they run.
        changes: Indices of the input tensors that it changes in place, in the order of tensors_in().
        changed: Placeholders for these tensors after the change.
        same: (Index in the result, index in the inputs) of tensors that it returns unchanged.
        values: The values of all placeholders in result, observed and changed, in the order of tensors_in().
    """

    function: object
    kind: Kind
    stage: int
    result: Any
    draws: bool
    name: str
    observed: list[tuple[str, Any]] = field(default_factory=list)
    changes: tuple[int, ...] = ()
    changed: tuple[Any, ...] = ()
    same: tuple[tuple[int, int], ...] = ()
    values: list[Value] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call of the model by the program.

    Attributes:
        output: The model's output, with placeholders; None if it contains anything but tensors.
        end: Number of operations when the model returned.
        at: Stage, last unit and operations since that unit, at that moment.
    """

    output: Any
    end: int
    at: tuple[int, str, int]


@dataclass(slots=True)
class Plan:
    """The program of one input signature.

    Attributes:
        operations: The operations in program order.
        values: All values of all stages.
        edges: Values per (source, target) stage, in the order in which the program uses them.
        calls: The calls of the model; operations outside of them belong to the code around it.
        results: Large values that the program returns, in order.
        loss_stage: The stage that computes the loss; -1 if there is no loss.
        writes_late: Whether the model's forward writes to attributes after this rank's last part in it.
        is_complete: Whether the program has been recorded to its end.
    """

    operations: list[Operation] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    edges: dict[tuple[int, int], list[Value]] = field(default_factory=dict)
    calls: list[ModelCall] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    loss_stage: int = -1
    writes_late: bool = False
    is_complete: bool = False
    _exports: dict[int, list[Value]] = field(default_factory=dict)
    _imports: dict[int, list[Value]] = field(default_factory=dict)
    _gradient_edges: dict[tuple[int, int], list[Value]] = field(default_factory=dict)
    _ends: dict[int, int] = field(default_factory=dict)
    _numbers: dict[tuple[int, int], int] = field(default_factory=dict)

    def connect(self, value: Value, stage: int) -> None:
        """Records that a stage uses a value of an earlier one."""
        if stage not in value.consumers:
            self._exports.clear()
            self._imports.clear()
            value.consumers.append(stage)
            self.edges.setdefault((value.stage, stage), []).append(value)
            self._numbers[value.index, stage] = len(self._numbers)

    def tag(self, value: Value, stage: int, microbatch: int, *, is_gradient: bool) -> int:
        """Returns the message tag of a value or its gradient for a stage."""
        number = self._numbers[value.index, stage]
        return 2 * (microbatch * len(self._numbers) + number) + is_gradient

    def exports(self, stage: int) -> list[Value]:
        """Returns the values of a stage that other stages use, in program order."""
        if stage not in self._exports:
            found = {
                value for (source, _), values in self.edges.items() if source == stage for value in values
            }
            self._exports[stage] = sorted(found, key=lambda value: value.index)
        return self._exports[stage]

    def imports(self, stage: int) -> list[Value]:
        """Returns the values of other stages that a stage uses, in program order."""
        if stage not in self._imports:
            found = [v for (_, target), values in self.edges.items() if target == stage for v in values]
            self._imports[stage] = sorted(found, key=lambda value: value.index)
        return self._imports[stage]

    def skip_edges(self) -> list[tuple[int, int]]:
        """Returns the edges that skip stages, as the schedule takes them.

        Host reads need no edges: a later stage depends on all earlier ones by the schedule's own chain.
        """
        backwards = {(target, source) for source, target in self.gradient_edges()}
        return sorted(edge for edge in {*self.edges, *backwards} if edge[1] > edge[0] + 1)

    def gradient_edges(self) -> dict[tuple[int, int], list[Value]]:
        """Returns the values whose gradients are sent from one stage to another.

        A gradient goes from each consumer to the one before it, and from the first consumer to the owner.
        Every stage adds its own uses to the sum of later stages, in the order in which autograd adds them in
        one process.
        """
        if not self._gradient_edges:
            for value in self.values:
                if value.has_gradient and value.consumers:
                    chain = [value.stage, *sorted(value.consumers)]
                    for target, source in itertools.pairwise(chain):
                        self._gradient_edges.setdefault((source, target), []).append(value)
        return self._gradient_edges

    def end_of(self, stage: int) -> int:
        """Returns the place after a stage's last operation; 0 if it has none."""
        if not self._ends:
            for place, operation in enumerate(self.operations):
                if operation.kind is not Kind.READ:
                    self._ends[operation.stage] = place + 1
        return self._ends.get(stage, 0)

    def reading_stages(self) -> set[int]:
        """Returns the stages after which the host reads values, within the model or around it."""
        return {operation.stage for operation in self.operations if operation.kind is Kind.READ}

    def end_of_reads(self, stage: int) -> int:
        """Returns the place after the last host read that follows a stage or an earlier one, or else 0."""
        places = [
            place + 1
            for place, operation in enumerate(self.operations)
            if operation.kind is Kind.READ and operation.stage <= stage
        ]
        return places[-1] if places else 0

    def last_needed(self, stages: Sequence[int]) -> int:
        """Returns the place after the last operation that concerns a rank with these stages."""
        needed = [
            place
            for place, operation in enumerate(self.operations)
            if operation.kind is Kind.READ or operation.stage in stages
        ]
        return needed[-1] + 1 if needed else 0
