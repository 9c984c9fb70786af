"""One microbatch of a step: runs the program on it, stage by stage."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from torch import Tensor, nn

from smdp.torch.pipelining.engine.host_reads import HostReads
from smdp.torch.pipelining.engine.microbatch_loss import MicrobatchLoss
from smdp.torch.pipelining.engine.one_step import Step
from smdp.torch.pipelining.engine.program_control import ProgramControl
from smdp.torch.pipelining.engine.same_program import SameProgram
from smdp.torch.pipelining.engine.stage_context import StageContext
from smdp.torch.pipelining.engine.stage_gradients import StageGradients
from smdp.torch.pipelining.engine.stage_values import StageValues
from smdp.torch.pipelining.interpreter.interpreter import Interpreter
from smdp.torch.pipelining.interpreter.replayer import EndOfForward
from smdp.torch.pipelining.tensors.containers import map_tensors, tensors_in
from smdp.torch.pipelining.tensors.random_streams import RandomStream
from smdp.torch.pipelining.tensors.values import value_of
from smdp.torch.pipelining.transfers.late_results import is_large
from smdp.torch.pipelining.units.current_microbatch import running


class Microbatch:
    """Runs the model and the loss function on one microbatch, stage by stage.

    Args:
        step: What it shares with the others.
        index: Its number.
        inputs: Its part of the batch.
        end: Number of operations after which this rank has no part in the model's forward.

    Attributes:
        index: Its number.
        control: Suspends the program, and resumes it.
        values: What stages give to each other.
        gradients: Those of the values.
        loss: What the program names as its loss.
        result: What the program returned; None before it has ended.
    """

    def __init__(self, step: Step, index: int, inputs: Any, end: int) -> None:
        self.index = index
        self.control = ProgramControl(step, index, self._run)
        self.values = StageValues(step, index, self.control.wait_for_value)
        self.gradients = StageGradients(step, index)
        self.loss = MicrobatchLoss(step)
        self.result: Any = None
        self._step = step
        self._inputs = inputs
        self._model_calls = 0
        self._reads = HostReads(step, index, self.control)
        self._context = StageContext(step, self.control, self.values, self.gradients, self._reads)
        stream = RandomStream(step.seed, step.number, step.first + index)
        self._interpreter = Interpreter(step.plan, self._context, step.ghosts, stream, end)

    # What the engine calls.

    def record(self) -> SameProgram:
        """Runs to the end, and learns what all microbatches will do.

        Returns:
            What compares it with what other ranks have learnt; they have been told.
        """
        self._reads.same = self.values.same = same = SameProgram(self._step.reads, self._step.others())
        self.control.allow_all()
        self.control.resume()
        self._step.plan.is_complete = True
        self._reads.same = None
        self.values.end_recording()
        same.tell(self._step.plan)
        return same

    def forward(self, stage: int) -> bool:
        """Runs until a stage has done its part.

        Returns:
            False where a host read must be answered first, of this microbatch or another.
        """
        control = self.control
        control.allow(stage)
        while not control.is_past(stage):
            if control.is_suspended and self._interpreter.position.place >= self._step.plan.end_of(stage):
                # Its backward begins with the loss, which the loss function has not given yet.
                is_open = stage == self._step.plan.loss_stage and self.loss.stage < 0
                if not is_open:
                    return True
            if control.is_blocked():
                return False
            control.resume()
        return True

    def catch_up(self, stage: int) -> None:
        """Runs all that follows a stage, up to the next one, and waits for the host reads in it."""
        if stage == len(self._step.rank_of) - 1:
            self.finish()
            return
        end = self._step.plan.end_of_reads(stage)
        while self.control.read is not None and self._interpreter.position.place <= end:
            self._go_on()

    def finish(self) -> None:
        """Runs to the end: all stages have run, only host reads may be waited for."""
        self.control.allow_all()
        while not self.control.is_finished:
            self._go_on()

    def _go_on(self) -> None:
        self._reads.wait(is_planned=not self._interpreter.position.is_detour)
        self.control.resume()

    # What the program calls.

    def call_model(self, model: nn.Module, args: Any, kwargs: Any) -> Any:
        """Runs the model's forward, as far as this rank has a part in it."""
        plan = self._step.plan
        interpreter = self._interpreter
        is_first = self._model_calls == 0
        if not is_first and len(self._step.rank_of) > 1:
            raise RuntimeError(
                "[smdp] the model is called twice in one microbatch; values flow through its stages once."
                " Concatenate the two batches, or make them two steps."
            )
        known = None if interpreter.position.is_recording else plan.calls[self._model_calls]
        self._model_calls += 1
        interpreter.position.enter_model()
        try:
            output = model(*args, **kwargs)
        except EndOfForward:
            assert known is not None
            # The program may change what it is given; the placeholders are everybody's.
            output = known.output if isinstance(known.output, Tensor) else copy.copy(known.output)
        output = map_tensors(interpreter.renewed, output)
        call = interpreter.position.leave_model(known)
        if known is None:
            plan.calls.append(dataclasses.replace(call, output=_ghostly(output)))
            plan.writes_late = self._context.has_seen_writes()
        self.control.wait_for_turn()
        return output

    def take_loss(self, loss: Any) -> None:
        """Notes the value whose backward the schedule runs, or whose mean is wanted.

        Raises:
            RuntimeError: There is one already.
        """
        self.loss.name(self._interpreter.renewed(loss) if isinstance(loss, Tensor) else loss)

    def _run(self) -> None:
        step = self._step
        with running(self), step.modes.restored(grad=step.needs_grad), self._interpreter:
            result = step.program(self._inputs)
            self.control.wait_for_turn()
            self.control.end_turn()
        self.loss.check()
        # Last, as it may suspend.
        self.result = map_tensors(self._shared, map_tensors(self._interpreter.renewed, result))
        if not step.needs_grad:
            self.values.forget_leaves()

    def _shared(self, tensor: Tensor) -> Tensor:
        value = value_of(tensor)
        return tensor if value is None else self._context.fetch(value, tensor, later=is_large(value))


def _ghostly(output: Any) -> Any:
    """Returns what the model returned with placeholders only; None where it holds anything else."""
    if any(value_of(tensor) is None for tensor in tensors_in(output)) or not _is_plain(output):
        return None

    def ghost(tensor: Tensor) -> Tensor:
        value = value_of(tensor)
        assert value is not None
        return value.ghost

    return map_tensors(ghost, output)


def _is_plain(tree: Any) -> bool:
    # A number may be another in every microbatch.
    if isinstance(tree, (Tensor, type(None))):
        return True
    if isinstance(tree, (list, tuple)):
        return all(_is_plain(item) for item in tree)
    if isinstance(tree, dict):
        return all(_is_plain(item) for item in tree.values())
    return False
