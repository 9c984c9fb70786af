"""One microbatch of a step: its thread, what it has received, what others need of it."""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from smdp.torch.pipelining.engine.host_reads import HostReads
from smdp.torch.pipelining.engine.one_step import Step
from smdp.torch.pipelining.engine.same_program import SameProgram
from smdp.torch.pipelining.gradients.weight_gradients import PostponedGradients
from smdp.torch.pipelining.interpreter.interpreter import EndOfForward, Interpreter
from smdp.torch.pipelining.tensors.containers import map_tensors, tensors_in
from smdp.torch.pipelining.tensors.differentiation import find_gradients
from smdp.torch.pipelining.tensors.random_streams import RandomStream
from smdp.torch.pipelining.tensors.values import Value, value_of
from smdp.torch.pipelining.transfers.late_results import is_large
from smdp.torch.pipelining.transfers.transfers import Arrival, dense_strides, laid_out, room_for, strides_of
from smdp.torch.pipelining.units.current_microbatch import running
from smdp.torch.pipelining.units.side_effects import Watch


class Microbatch:
    """Runs the model and the loss function on one microbatch, stage by stage.

    Args:
        step: What it shares with the others.
        index: Its number.
        inputs: Its part of the batch.
        end: Number of operations after which this rank has no part in the model's forward.
    """

    def __init__(self, step: Step, index: int, inputs: Any, end: int) -> None:
        self.index = index
        self.own = step.own
        self.postpones = step.postpones
        self.wording = step.wording
        self.loss: Tensor | None = None
        self.result: Any = None
        self.loss_stage = -1
        self.loss_value: Tensor | None = None
        self.loss_dtype = torch.float32
        self.gradients: dict[tuple[int, int], Tensor | Arrival] = {}
        self.layouts: dict[tuple[int, int], Arrival] = {}
        self.postponed: dict[int, PostponedGradients] = {}
        self._step = step
        self._value: Arrival | None = None
        self._waits_for_turn = False
        self._inputs = inputs
        self._arrivals: dict[tuple[int, int], Arrival] = {}
        self._leaves: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._uses: Counter[int] = Counter()
        self._model_calls = 0
        self._watch: Watch | None = None
        self._loss: tuple[Any] | None = None
        self._may_run = -1
        self._wants = -1
        stream = RandomStream(step.seed, step.number, step.first + index)
        # Weakly, so that nothing of a microbatch outlives its step until the garbage collector comes.
        self._interpreter = Interpreter(step.plan, weakref.proxy(self), step.ghosts, stream, end)
        self._coroutine = step.coroutines.start(self._run)
        self._reads = HostReads(step, index, self._coroutine.suspend)

    @property
    def is_finished(self) -> bool:
        """Whether its program has ended on this rank."""
        return self._coroutine.is_finished

    def record(self) -> SameProgram:
        """Run to the end, and learn what all microbatches will do.

        Returns:
            What compares it with what other ranks have learnt; they have been told.
        """
        self._reads.same = same = SameProgram(self._step.reads, self._step.others())
        self._may_run = len(self._step.rank_of)
        self._coroutine.resume()
        self._step.plan.is_complete = True
        for value in self._step.plan.values:
            if not value.consumers:
                self._interpreter.exports.pop(value.index, None)
            elif self._step.is_mine(value.stage):
                self._let_go(value)
        self._reads.same = None
        same.tell(self._step.plan)
        return same

    def forward(self, stage: int) -> bool:
        """Run until the stage has done its part.

        Returns:
            False where a host read must be answered first, of this microbatch or another.
        """
        self._may_run = stage
        while not self.is_finished and self._wants <= stage:
            if self.is_suspended and self._interpreter.place >= self._step.plan.end_of(stage):
                # Its backward begins with the loss, which the loss function has not given yet.
                is_open = stage == self._step.plan.loss_stage and self.loss_stage < 0
                if not is_open:
                    return True
            if self.is_blocked():
                return False
            self._coroutine.resume()
        return True

    @property
    def is_suspended(self) -> bool:
        """Whether it waits for a value that the host reads, or for its turn."""
        return self._reads.awaited is not None or self._waits_for_turn

    def is_blocked(self) -> bool:
        """Tell whether it would wait again, if it went on."""
        awaited = self._reads.awaited or self._value
        if awaited is not None and not awaited.is_there():
            return True
        return self._waits_for_turn and self._step.turn < self.index

    def go_on(self) -> None:
        """Resume after a host read whose value has come, or when its turn has."""
        self._coroutine.resume()

    def finish(self) -> None:
        """Run to the end: all stages have run, only host reads may be waited for."""
        self._may_run = len(self._step.rank_of)
        while not self.is_finished:
            self._reads.wait(is_planned=not self._interpreter.is_detour)
            self._coroutine.resume()

    def abandon(self) -> None:
        """End it wherever it is."""
        self._coroutine.abandon()

    def send_values(self, stage: int, to: int) -> None:
        """Send what a later stage uses of this one."""
        for value in self._step.plan.edges.get((stage, to), ()):
            self.send(value, self._export(value), to)

    def receive_values(self, stage: int, source: int) -> None:
        """Post receives for what a stage uses of an earlier one."""
        for value in self._step.plan.edges.get((source, stage), ()):
            self._arrivals[value.index, stage] = self._receive(value, stage)

    def take_export(self, value: Value) -> Tensor | GradientEdge | None:
        """Give where a value's gradient goes in, and forget it."""
        return self._interpreter.exports.pop(value.index)

    def take_leaf(self, value: Value, stage: int) -> tuple[Tensor, Tensor]:
        """Give the leaf of another stage's value, with what the stage has used of it, and forget both."""
        if (value.index, stage) not in self._leaves:
            self._bring(value, stage, Arrival.wait)  # agreed on, and not used by this microbatch
        return self._leaves.pop((value.index, stage))

    def has_gradients(self, stage: int) -> bool:
        """Tell whether backward() of a stage would wait for nobody."""
        values = (*self._step.plan.exports(stage), *self._step.plan.imports(stage))
        found = [self.gradients.get((value.index, value.consumer_after(stage) or -1)) for value in values]
        return all(each.is_there() for each in found if isinstance(each, Arrival))

    def take_gradient(self, value: Value, stage: int) -> Tensor:
        """Give the gradient of a value that a consumer has found, and forget it."""
        found = self.gradients.pop((value.index, stage))
        if not isinstance(found, Arrival):
            return found
        gradient = found.wait()
        if (layout := self.layouts.pop((value.index, stage), None)) is not None:
            value.gradient_strides[stage] = tuple(layout.wait().tolist())
        return gradient.as_strided(gradient.shape, value.gradient_strides[stage])

    # What the program calls.

    def call_model(self, model: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run the model's forward, as far as this rank has a part in it."""
        plan = self._step.plan
        interpreter = self._interpreter
        is_first = self._model_calls == 0
        if not is_first and len(self._step.rank_of) > 1:
            raise RuntimeError(
                "[smdp] the model is called twice in one microbatch; values flow through its stages once."
                " Concatenate the two batches, or make them two steps."
            )
        known = None if interpreter.is_recording else plan.calls[self._model_calls]
        self._model_calls += 1
        interpreter.enter_model()
        try:
            output = model(*args, **kwargs)
        except EndOfForward:
            assert known is not None
            # The program may change what it is given; the placeholders are everybody's.
            output = known.output if isinstance(known.output, Tensor) else copy.copy(known.output)
        output = map_tensors(interpreter.renewed, output)
        call = interpreter.leave_model(known)
        if known is None:
            plan.calls.append(dataclasses.replace(call, output=_ghostly(output)))
            plan.writes_late = self._watch is not None and self._watch.has_seen_writes()
            self._watch = None
        self._wait_for_turn()
        return output

    def take_loss(self, loss: Any) -> None:
        """Note the value whose backward the schedule runs, or whose mean is wanted.

        Raises:
            RuntimeError: There is one already.
        """
        if self._loss is not None:
            raise RuntimeError(
                "[smdp] backward() is called twice in one microbatch; add the losses and call it once"
            )
        self._loss = (self._interpreter.renewed(loss) if isinstance(loss, Tensor) else loss,)

    # What the interpreter asks.

    def enter(self, stage: int) -> None:
        """Suspend until the schedule lets a stage run."""
        self._step.has_begun = True
        while stage > self._may_run:
            self._wants = stage
            self._coroutine.suspend()
        self._wants = -1

    def computing(self, stage: int) -> AbstractContextManager[None]:
        """Give the context in which a stage of this rank computes."""
        return self.postponed.setdefault(stage, PostponedGradients())

    def send(self, value: Value, tensor: Tensor, stage: int) -> None:
        """Send a value to a stage of another rank."""
        step = self._step
        tag = step.plan.tag(value, stage, self.index, is_gradient=False)
        rank, what = step.rank_of[stage], self._text_of(value, stage)
        is_first = self._reads.same is not None
        if is_first and value.strides is None:
            value.strides = dense_strides(tensor)
        step.values.send(laid_out(tensor, strides_of(value)), rank, tag, what)
        if is_first:
            step.values.send(
                torch.tensor(value.strides, dtype=torch.int64, device="cpu"),
                rank,
                tag,
                f"the strides of {what}",
            )
        self._note_use(value)

    def bring(self, value: Value, stage: int) -> Tensor:
        """Give a stage another's value, cut from its graph."""
        return self._bring(value, stage, self._wait_for_value)

    def _bring(self, value: Value, stage: int, wait: Callable[[Arrival], Tensor]) -> Tensor:
        key = (value.index, stage)
        if key not in self._leaves:
            if self._step.is_mine(value.stage):
                leaf = self._export(value).detach()
                self._note_use(value)
            else:
                arrival = self._arrivals.pop(key, None) or self._receive(value, stage)
                if self._reads.same is not None:
                    self._reads.same.check_answer(arrival, self._step.rank_of[value.stage], value.text())
                leaf = wait(arrival)
                if self._reads.same is not None:
                    leaf = self._in_strides(leaf, value, stage)
            used = leaf
            if value.needs_grad and self._step.needs_grad:
                # Not the leaf itself, so that later consumers' gradients are the first that autograd adds.
                used = leaf.requires_grad_().view_as(leaf)
            self._leaves[key] = leaf, used
        return self._leaves[key][1]

    def _in_strides(self, leaf: Tensor, value: Value, stage: int) -> Tensor:
        """Give what has arrived the strides that it has where it comes from."""
        arrival = self._receive(value, stage, torch.empty(leaf.dim(), dtype=torch.int64, device="cpu"))
        value.strides = tuple(self._wait_for_value(arrival).tolist())
        return leaf.as_strided(leaf.shape, value.strides)

    def watch(self) -> None:
        """See ExecutionContext."""
        self._watch = Watch(self._step.glue)

    def fetch(self, value: Value, tensor: Tensor, *, later: bool = False) -> Tensor:
        """Give the contents of a value on every rank; others may fetch them `later`."""
        return self._reads.fetch(value, lambda: self._own(value, tensor), later=later)

    def describe(self, unit: Any, result: Any) -> Any:
        """Hand round shapes and dtypes of what a unit gave."""
        self._step.has_begun = True
        return self._reads.describe(unit, self._interpreter.stage, result)

    def _own(self, value: Value, tensor: Tensor) -> Tensor:
        """Give the contents of a value of this rank, of which the program may have a placeholder."""
        if type(tensor) is not FakeTensor:
            return tensor
        found = self._interpreter.returned.pop(value.index, None)
        if found is None:
            raise RuntimeError(
                f"[smdp] the program reads or returns {value.text()}, which the model returned, in microbatch"
                f" {self.index}, and did not in the first one of these shapes; allowed: always or never"
            )
        return found

    def _export(self, value: Value) -> Tensor:
        found = self._interpreter.exports[value.index]
        assert isinstance(found, Tensor)
        return found

    def _note_use(self, value: Value) -> None:
        self._uses[value.index] += 1
        if not self._interpreter.is_recording:
            self._let_go(value)

    def _let_go(self, value: Value) -> None:
        """Keep the graph of a value that all its consumers have, without the contents."""
        if self._uses[value.index] < len(value.consumers):
            return
        tensor = self._export(value)
        if tensor.requires_grad:
            self._interpreter.exports[value.index] = get_gradient_edge(tensor)
        elif not value.needs_grad or not self._step.needs_grad:
            self._interpreter.exports[value.index] = None

    def _receive(self, value: Value, stage: int, room: Tensor | None = None) -> Arrival:
        step = self._step
        source = step.rank_of[value.stage]
        what = f"{value.text()} of stage {value.stage} on rank {source}, microbatch {self.index}"
        tag = step.plan.tag(value, stage, self.index, is_gradient=False)
        room = room_for(value, strides_of(value)) if room is None else room
        return step.values.receive(room, source, tag, what)

    def _text_of(self, value: Value, stage: int) -> str:
        return f"{value.text()} of stage {value.stage} to stage {stage}, microbatch {self.index}"

    def _wait_for_value(self, arrival: Arrival) -> Tensor:
        """Wait for another stage; while host reads are open, its rank may wait for one of ours."""
        if self._step.reading > 0:
            self._value = arrival
            while not arrival.is_there():
                self._coroutine.suspend()
            self._value = None
        return arrival.wait()

    def _wait_for_turn(self) -> None:
        """Suspend until earlier microbatches' programs have ended: `total += loss.item()` is no atom."""
        self._waits_for_turn = True
        while self._step.turn < self.index:
            self._coroutine.suspend()
        self._waits_for_turn = False

    def _run(self) -> None:
        step = self._step
        with running(self), step.modes.restored(grad=step.needs_grad), self._interpreter:
            result = step.program(self._inputs)
            self._wait_for_turn()
            step.turn += 1
        if step.plan.is_complete and step.needs_grad:
            self._check_same_end()
        if self._loss is not None:
            self._check_loss(*self._loss)
            self._loss = None
        # Last, as it may suspend.
        self.result = map_tensors(self._shared, map_tensors(self._interpreter.renewed, result))
        if not step.needs_grad:
            self._leaves.clear()

    def _check_same_end(self) -> None:
        """The schedule has been chosen: with backwards, or without."""
        has_loss = self._loss is not None
        if has_loss == (self._step.plan.loss_stage >= 0):
            return
        calls = "calls backward(), and did not" if has_loss else "does not call backward(), and did"
        raise RuntimeError(
            f"[smdp] the step {calls} in its first microbatch with arguments of these shapes; allowed: always"
            " or never. Give the step what decides it as an argument, for instance a bool, or evaluate under"
            " torch.no_grad()."
        )

    def _check_loss(self, loss: Any) -> None:
        value = value_of(loss) if isinstance(loss, Tensor) else None
        if value is None:
            what = type(loss).__name__ if not isinstance(loss, Tensor) else "a tensor"
            raise ValueError(
                f"[smdp] the loss is {what} that depends on no stage of the model; allowed: a"
                " scalar tensor computed from the model's output"
            )
        if value.ghost.numel() != 1:
            raise ValueError(
                f"[smdp] the loss is {value.text()}; allowed: one number. Take its mean() or sum()."
            )
        if self._step.needs_grad and not value.needs_grad:
            raise ValueError(
                "[smdp] the loss has no gradient: no parameter that requires one is used, or the loss was"
                " detached. Return it as it was computed."
            )
        self.loss_stage = self._step.plan.loss_stage = value.stage
        if not self._step.plan.is_complete:
            find_gradients(self._step.plan.values, value)
        self.loss_dtype = value.ghost.dtype
        if self._step.is_mine(value.stage):
            self.loss = loss
            self.loss_value = loss.detach().reshape(())

    def _shared(self, tensor: Tensor) -> Tensor:
        value = value_of(tensor)
        return tensor if value is None else self.fetch(value, tensor, later=is_large(value))


def _ghostly(output: Any) -> Any:
    """Give what the model returned with placeholders only; None where it holds anything else."""
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
