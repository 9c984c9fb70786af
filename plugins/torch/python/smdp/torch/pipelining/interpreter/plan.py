"""What the first microbatch of an input signature has taught: operations, values, edges between stages."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from smdp.torch.pipelining.tensors.values import Value


class Kind(enum.Enum):
    """How an operation is executed."""

    GLUE = enum.auto()  # by its stage alone
    UNIT = enum.auto()  # the same, a module that is never cut
    READ = enum.auto()  # on all ranks, with values that their owners hand round


@dataclass(slots=True)
class Operation:
    """One entry of the program that touches a stage's value or parameter.

    Attributes:
        function: What the program called; for a unit its original forward.
        kind: How it is executed.
        stage: Who executes it.
        result: What it gives, with placeholders for tensors.
        draws: It draws random numbers.
        name: Unit, or function and the unit before it; also seeds its random numbers.
        observed: (Name, output) of modules with hooks inside a unit, in the order in which they run.
        changes: Which of the inputs' tensors it changes in place, in the order of tensors_in().
        changed: Placeholders of those afterwards.
        same: (Place in the result, place in the inputs) of the tensors that it gives back as they are.
        values: Of the placeholders of all three, in the order of tensors_in().
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
    """Where the program called the model.

    Attributes:
        output: What the model returned, with placeholders; None where it holds anything but tensors.
        end: Number of operations when it returned.
        at: Stage, last unit and operations since then, at that moment.
    """

    output: Any
    end: int
    at: tuple[int, str, int]


@dataclass(slots=True)
class Plan:
    """The program of one input signature.

    Attributes:
        operations: In program order.
        values: All values of all stages.
        edges: Values per (source, target) stage, in the order in which the program meets them.
        calls: Of the model; what is outside them is the code around it.
        results: Large values that the program returns, in their order.
        loss_stage: Who has the loss; -1 if there is none.
        writes_late: The model's forward writes to attributes where this rank has no part in it any more.
        is_complete: The program has been recorded to its end.
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
        """Note that a stage uses a value of an earlier one."""
        if stage not in value.consumers:
            self._exports.clear()
            self._imports.clear()
            value.consumers.append(stage)
            self.edges.setdefault((value.stage, stage), []).append(value)
            self._numbers[value.index, stage] = len(self._numbers)

    def tag(self, value: Value, stage: int, microbatch: int, *, is_gradient: bool) -> int:
        """Give the number under which a value, or its gradient, travels to or from a stage."""
        number = self._numbers[value.index, stage]
        return 2 * (microbatch * len(self._numbers) + number) + is_gradient

    def exports(self, stage: int) -> list[Value]:
        """Give the values that other stages use, in program order."""
        if stage not in self._exports:
            found = {
                value for (source, _), values in self.edges.items() if source == stage for value in values
            }
            self._exports[stage] = sorted(found, key=lambda value: value.index)
        return self._exports[stage]

    def imports(self, stage: int) -> list[Value]:
        """Give the values of other stages that this one uses, in program order."""
        if stage not in self._imports:
            found = [v for (_, target), values in self.edges.items() if target == stage for v in values]
            self._imports[stage] = sorted(found, key=lambda value: value.index)
        return self._imports[stage]

    def skip_edges(self) -> list[tuple[int, int]]:
        """Give the edges that pass stages by, as the schedule takes them.

        What the host reads needs none: a later stage depends on all earlier ones by the schedule's own chain.
        """
        backwards = {(target, source) for source, target in self.gradient_edges()}
        return sorted(edge for edge in {*self.edges, *backwards} if edge[1] > edge[0] + 1)

    def gradient_edges(self) -> dict[tuple[int, int], list[Value]]:
        """Give the values whose gradients go from one stage to another.

        From each consumer to the one before it, and from the first to the owner: every stage adds its own
        uses to what later ones found, in the order in which the autograd of one process adds them.
        """
        if not self._gradient_edges:
            for value in self.values:
                if value.has_gradient and value.consumers:
                    chain = [value.stage, *sorted(value.consumers)]
                    for target, source in itertools.pairwise(chain):
                        self._gradient_edges.setdefault((source, target), []).append(value)
        return self._gradient_edges

    def end_of(self, stage: int) -> int:
        """Give the place after a stage's last operation; 0 if it has none."""
        if not self._ends:
            for place, operation in enumerate(self.operations):
                if operation.kind is not Kind.READ:
                    self._ends[operation.stage] = place + 1
        return self._ends.get(stage, 0)

    def reading_stages(self) -> set[int]:
        """Returns the stages after which the host reads values, within the model or around it."""
        return {operation.stage for operation in self.operations if operation.kind is Kind.READ}

    def end_of_reads(self, stage: int) -> int:
        """Returns the place after the last host read that follows a stage, or an earlier one; else 0."""
        places = [
            place + 1
            for place, operation in enumerate(self.operations)
            if operation.kind is Kind.READ and operation.stage <= stage
        ]
        return places[-1] if places else 0

    def last_needed(self, stages: Sequence[int]) -> int:
        """Give the place after the last operation that a rank with these stages has a part in."""
        needed = [
            place
            for place, operation in enumerate(self.operations)
            if operation.kind is Kind.READ or operation.stage in stages
        ]
        return needed[-1] + 1 if needed else 0
