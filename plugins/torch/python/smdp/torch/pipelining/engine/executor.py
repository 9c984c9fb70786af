"""Executes one rank's row of a schedule: what is done, and when, stands in the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smdp._errors import SmdpError
from smdp.torch.pipelining.engine.actions import COMPUTATIONS, Action
from smdp.torch.pipelining.engine.backward import backward, backward_weight
from smdp.torch.pipelining.engine.microbatch import Microbatch
from smdp.torch.pipelining.engine.one_step import Step
from smdp.torch.pipelining.interpreter.plan import Plan
from smdp.torch.pipelining.transfers.transfers import room_for, strides_of

# Receives are posted so many computations ahead of the place where the schedule has them.
_AHEAD = 2
# Seconds between looks at host reads, while something else is waited for as well.
_PAUSE = 5e-5


@dataclass(frozen=True, slots=True)
class Timed:
    """When an action ran, in nanoseconds of time.monotonic_ns(), and for how many it waited for others."""

    text: str
    start: int
    end: int
    waited: int


class Executor:
    """Runs the actions of one step.

    Args:
        step: What the microbatches share.
        row: This rank's actions.
        microbatches: All of the step.
        recorded: Microbatch 0 has run its forward already.
        scale: Makes of a microbatch's loss what its backward begins with.
        reduce_replicas: Averages the gradients of a stage over data-parallel replicas.
        reduce_tied: Adds the gradients of a group of tied weights.
    """

    def __init__(
        self,
        step: Step,
        row: Sequence[Action],
        microbatches: list[Microbatch],
        *,
        recorded: bool,
        scale: Callable[[Tensor], Tensor],
        reduce_replicas: Callable[[int], None],
        reduce_tied: Callable[[int], None],
    ) -> None:
        self._step = step
        self._plan: Plan = step.plan
        self._row = row
        self._microbatches = microbatches
        self._recorded = recorded
        self._scale = scale
        self._posted = 0
        self._ahead = 0
        self._under_way: dict[int, Microbatch] = {}
        self._paused = 0.0
        self._reduce_replicas = reduce_replicas
        self._reduce_tied = reduce_tied
        self.timeline: list[Timed] = []

    def run(self) -> None:
        """Run all actions, and all microbatches to their ends.

        Raises:
            smdp.SmdpError: A transfer failed; the message names the action.
        """
        for action in self._row:
            self._post_receives()
            start = time.monotonic_ns()
            before = self._waited()
            try:
                self._perform(action)
            except SmdpError as error:
                text = (
                    f"{error.args[0] if error.args else ''} Action {action.text} of rank {self._step.rank}."
                )
                error.args = (text, *error.args[1:])
                raise
            waited = int(1e9 * (self._waited() - before))
            self.timeline.append(Timed(action.text, start, time.monotonic_ns(), waited))
            self._ahead -= action.kind in COMPUTATIONS
            self._serve_reads()
        for microbatch in self._microbatches:
            microbatch.finish()
        self._step.values.finish()
        self._step.reads.finish()

    def _waited(self) -> float:
        return self._step.values.waited + self._step.reads.waited + self._paused

    def _pause(self) -> None:
        start = time.perf_counter()
        time.sleep(_PAUSE)
        self._paused += time.perf_counter() - start

    def _perform(self, action: Action) -> None:
        # A table of bound methods would be a cycle, which keeps a step's tensors until it is collected.
        match action.kind:
            case "F":
                self._forward(action)
            case "B":
                self._backward_input(action)
                self._backward_weight(action)
            case "I":
                self._backward_input(action)
            case "W":
                self._backward_weight(action)
            case "SEND_F":
                self._send_forward(action)
            case "SEND_B":
                self._send_backward(action)
            case "REDUCE_GRAD":
                self._reduce_replicas(action.stage)
            case "REDUCE_TIED":
                self._reduce_tied(action.microbatch)
            case "RECV_F" | "RECV_B":
                pass  # posted by _post_receives()
            case _:
                raise AssertionError(f"[smdp] action {action.text} is unknown to the executor")

    def _post_receives(self) -> None:
        """Post what comes up to the second computation from here, in the order of the row."""
        while self._ahead < _AHEAD and self._posted < len(self._row):
            action = self._row[self._posted]
            self._posted += 1
            if action.kind == "RECV_F":
                self._receive_forward(action)
            elif action.kind == "RECV_B":
                self._receive_backward(action)
            self._ahead += action.kind in COMPUTATIONS

    def _serve_reads(self) -> None:
        """Let microbatches go on, in their order, whose host reads have been answered."""
        for index in sorted(self._under_way):
            microbatch = self._under_way[index]
            while microbatch.is_suspended:
                if microbatch.is_blocked():
                    break  # a later one may go on, inside the model; after it turns keep the order
                microbatch.go_on()
            if microbatch.is_finished:
                del self._under_way[index]

    def _forward(self, action: Action) -> None:
        if not self._was_recorded(action):
            microbatch = self._under_way[action.microbatch] = self._microbatches[action.microbatch]
            while not microbatch.forward(action.stage):
                self._serve_reads()
                self._pause()

    def _backward_input(self, action: Action) -> None:
        microbatch = self._microbatches[action.microbatch]
        # Who is to send the gradient may wait for a value that this rank has yet to hand round.
        while self._step.reading > 0 and not microbatch.has_gradients(action.stage):
            self._serve_reads()
            self._pause()
        backward(self._plan, microbatch, action.stage, self._scale)

    def _backward_weight(self, action: Action) -> None:
        backward_weight(self._microbatches[action.microbatch], action.stage)

    def _was_recorded(self, action: Action) -> bool:
        return self._recorded and action.microbatch == 0

    def _send_forward(self, action: Action) -> None:
        if not self._was_recorded(action):
            self._microbatches[action.microbatch].send_values(action.stage, action.other)

    def _receive_forward(self, action: Action) -> None:
        if not self._was_recorded(action):
            self._microbatches[action.microbatch].receive_values(action.stage, action.other)

    def _send_backward(self, action: Action) -> None:
        microbatch = self._microbatches[action.microbatch]
        to = self._step.rank_of[action.other]
        for value in self._plan.gradient_edges().get((action.stage, action.other), ()):
            gradient = microbatch.take_gradient(value, action.stage)
            tag = self._plan.tag(value, action.stage, action.microbatch, is_gradient=True)
            what = f"the gradient of {value.text()} to stage {action.other}, microbatch {action.microbatch}"
            self._step.values.send(gradient, to, tag, what)
            if self._was_recorded(action):
                data = torch.tensor(gradient.stride(), dtype=torch.int64, device="cpu")
                self._step.values.send(data, to, tag, f"the strides of {what}")

    def _receive_backward(self, action: Action) -> None:
        microbatch = self._microbatches[action.microbatch]
        source = self._step.rank_of[action.other]
        for value in self._plan.gradient_edges().get((action.other, action.stage), ()):
            tag = self._plan.tag(value, action.other, action.microbatch, is_gradient=True)
            what = (
                f"the gradient of {value.text()} from stage {action.other} on rank {source},"
                f" microbatch {action.microbatch}"
            )
            key = value.index, action.other
            room = room_for(value, strides_of(value))
            microbatch.gradients[key] = self._step.values.receive(room, source, tag, what)
            if self._was_recorded(action):
                room = torch.empty(len(value.shape), dtype=torch.int64, device="cpu")
                microbatch.layouts[key] = self._step.values.receive(room, source, tag, what)
