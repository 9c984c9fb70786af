"""The services that the interpreter of a microbatch uses from the engine."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from smdp.torch.pipelining.engine.host_reads import HostReads
from smdp.torch.pipelining.engine.one_step import Step
from smdp.torch.pipelining.engine.program_control import ProgramControl
from smdp.torch.pipelining.engine.stage_gradients import StageGradients
from smdp.torch.pipelining.engine.stage_values import StageValues
from smdp.torch.pipelining.tensors.values import Value
from smdp.torch.pipelining.units.side_effects import Watch

_NOTHING = nullcontext()


class StageContext:
    """The `ExecutionContext` of a microbatch, which delegates each call to the part that implements it.

    It has no reference to the microbatch, which holds the interpreter, so that a microbatch is freed at the
    end of its step without the garbage collector.

    Args:
        step: The state shared by the microbatches of the step.
        control: Suspends the program.
        values: Exchanges values with other stages.
        gradients: Keeps postponed weight gradients.
        reads: Shares values that the host reads.
    """

    def __init__(
        self,
        step: Step,
        control: ProgramControl,
        values: StageValues,
        gradients: StageGradients,
        reads: HostReads,
    ) -> None:
        self.own = step.own
        self.postpones = step.postpones
        self.wording = step.wording
        self._step = step
        self._control = control
        self._values = values
        self._gradients = gradients
        self._reads = reads
        self._watch: Watch | None = None

    def enter(self, stage: int) -> None:
        """Suspends until the schedule runs a stage."""
        self._control.enter(stage)

    def computing(self, stage: int) -> AbstractContextManager[None]:
        """Returns the context in which a stage of this rank computes."""
        return self._gradients.computing(stage)

    def saving(self, stage: int) -> AbstractContextManager[None]:
        """Returns the context in which autograd saves the tensors of a stage of this rank."""
        saved = self._step.saved
        return _NOTHING if saved is None else saved.saving(stage, self._values.microbatch)

    def export(self, value: Value, tensor: Tensor) -> None:
        """Keeps a value of this rank that other stages use."""
        self._values.export(value, tensor)

    def note_returned(self, value: Value, tensor: Tensor) -> None:
        """Keeps a value that the model returns."""
        self._values.note_returned(value, tensor)

    def send(self, value: Value, tensor: Tensor, stage: int) -> None:
        """Sends a value to a stage of another rank."""
        self._values.send(value, tensor, stage)

    def bring(self, value: Value, stage: int) -> Tensor:
        """Returns another stage's value, detached from its graph."""
        return self._values.bring(value, stage)

    def fetch(self, value: Value, tensor: Tensor, *, later: bool = False) -> Tensor:
        """Returns a value's contents on every rank; with `later`, other ranks fetch them on first use."""
        return self._reads.fetch(value, lambda: self._values.own(value, tensor), later=later)

    def describe(self, unit: Any, stage: int, result: Any) -> Any:
        """Returns a unit's result as placeholders on the ranks that did not compute it."""
        self._step.has_begun = True
        return self._reads.describe(unit, stage, result)

    def watch(self) -> None:
        """Records the attributes of modules at the end of this rank's work in the forward."""
        self._watch = Watch(self._step.glue)

    def has_seen_writes(self) -> bool:
        """Returns whether the forward has written to attributes since the last watch(), which ends here."""
        watch, self._watch = self._watch, None
        return watch is not None and watch.has_seen_writes()
