"""One microbatch of a step, which runs the user's program stage by stage."""

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
        step: The state shared by the microbatches of the step.
        index: Index of the microbatch.
        inputs: Its part of the batch.
        end: Number of operations after which this rank has no more work in the model's forward.

    Attributes:
        index: Index of the microbatch.
        control: Suspends and resumes the program.
        values: The values that stages exchange.
        gradients: The gradients of these values.
        loss: The loss that the program marks.
        result: The return value of the program; None before it has ended.
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

    # Called by the engine.

    def record(self) -> SameProgram:
        """Runs the program to its end and records what all microbatches will do.

        Returns:
            A comparison with the recordings of other ranks, to which this rank has sent a digest of its own.
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
        """Runs until a stage has computed its forward.

        Returns:
            False if a host read, of this microbatch or another one, must be answered first.
        """
        control = self.control
        control.allow(stage)
        while not control.is_past(stage):
            if control.is_suspended and self._interpreter.position.place >= self._step.plan.end_of(stage):
                # The backward begins with the loss, which the loss function has not returned yet.
                is_open = stage == self._step.plan.loss_stage and self.loss.stage < 0
                if not is_open:
                    return True
            if control.is_blocked():
                return False
            control.resume()
        return True

    def catch_up(self, stage: int) -> None:
        """Runs everything between a stage and the next one, and waits for the host reads in it."""
        if stage == len(self._step.rank_of) - 1:
            self.finish()
            return
        end = self._step.plan.end_of_reads(stage)
        while self.control.read is not None and self._interpreter.position.place <= end:
            self._go_on()

    def finish(self) -> None:
        """Runs to the end. All stages have run, so the program can wait only for host reads."""
        self.control.allow_all()
        while not self.control.is_finished:
            self._go_on()

    def _go_on(self) -> None:
        self._reads.wait(is_planned=not self._interpreter.position.is_detour)
        self.control.resume()

    # Called by the program.

    def call_model(self, model: nn.Module, args: Any, kwargs: Any) -> Any:
        """Runs the part of the model's forward that concerns this rank."""
        plan = self._step.plan
        interpreter = self._interpreter
        is_first = self._model_calls == 0
        if not is_first and len(self._step.rank_of) > 1:
            raise RuntimeError(
                "[smdp] the model is called twice in one microbatch, but values pass through its stages only"
                " once. Concatenate the two batches, or run two steps."
            )
        known = None if interpreter.position.is_recording else plan.calls[self._model_calls]
        self._model_calls += 1
        interpreter.position.enter_model()
        try:
            output = model(*args, **kwargs)
        except EndOfForward:
            assert known is not None
            # The program may modify the container, but all microbatches share the placeholders.
            output = known.output if isinstance(known.output, Tensor) else copy.copy(known.output)
        output = map_tensors(interpreter.renewed, output)
        call = interpreter.position.leave_model(known)
        if known is None:
            plan.calls.append(dataclasses.replace(call, output=_ghostly(output)))
            plan.writes_late = self._context.has_seen_writes()
        self.control.wait_for_turn()
        return output

    def take_loss(self, loss: Any) -> None:
        """Records the loss whose backward the schedule runs, or whose mean is requested.

        Raises:
            RuntimeError: The microbatch already has a loss.
        """
        self.loss.name(self._interpreter.renewed(loss) if isinstance(loss, Tensor) else loss)

    def _run(self) -> None:
        step = self._step
        with running(self), step.modes.restored(grad=step.needs_grad), self._interpreter:
            result = step.program(self._inputs)
            self.control.wait_for_turn()
            self.control.end_turn()
        self.loss.check()
        # Comes last because it may suspend.
        self.result = map_tensors(self._shared, map_tensors(self._interpreter.renewed, result))
        if not step.needs_grad:
            self.values.forget_leaves()

    def _shared(self, tensor: Tensor) -> Tensor:
        value = value_of(tensor)
        return tensor if value is None else self._context.fetch(value, tensor, later=is_large(value))


def _ghostly(output: Any) -> Any:
    """Returns the model's output with its values as placeholders; None if it contains anything else."""
    if any(value_of(tensor) is None for tensor in tensors_in(output)) or not _is_plain(output):
        return None

    def ghost(tensor: Tensor) -> Tensor:
        value = value_of(tensor)
        assert value is not None
        return value.ghost

    return map_tensors(ghost, output)


def _is_plain(tree: Any) -> bool:
    # A number may differ between microbatches.
    if isinstance(tree, (Tensor, type(None))):
        return True
    if isinstance(tree, (list, tuple)):
        return all(_is_plain(item) for item in tree)
    if isinstance(tree, dict):
        return all(_is_plain(item) for item in tree.values())
    return False
