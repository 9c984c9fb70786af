"""Values of stages in one microbatch: what this rank's stages give to others, and what they use of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from smdp.torch.pipelining.engine.one_step import Step
from smdp.torch.pipelining.engine.same_program import SameProgram
from smdp.torch.pipelining.tensors.values import Value
from smdp.torch.pipelining.transfers.transfers import Arrival, dense_strides, laid_out, room_for, strides_of


class StageValues:
    """Exchanges the values of one microbatch with other stages.

    Args:
        step: What the microbatch shares with the others.
        index: Number of the microbatch.
        wait: Waits for a value within the program, which may be suspended meanwhile.

    Attributes:
        same: Compares the program with those of other ranks while it is recorded; None afterwards.
    """

    def __init__(self, step: Step, index: int, wait: Callable[[Arrival], Tensor]) -> None:
        self.same: SameProgram | None = None
        self._step = step
        self._index = index
        self._wait = wait
        self._exports: dict[int, Tensor | GradientEdge | None] = {}
        self._returned: dict[int, Tensor] = {}
        self._arrivals: dict[tuple[int, int], Arrival] = {}
        self._leaves: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._uses: Counter[int] = Counter()

    # What the interpreter finds.

    def export(self, value: Value, tensor: Tensor) -> None:
        """Keeps a value of this rank that other stages use, or may use."""
        self._exports[value.index] = tensor

    def note_returned(self, value: Value, tensor: Tensor) -> None:
        """Keeps a value that the model returns, where the program may get a placeholder of it."""
        self._returned[value.index] = tensor

    def own(self, value: Value, tensor: Tensor) -> Tensor:
        """Returns the contents of a value of this rank, of which the program may have a placeholder.

        Raises:
            RuntimeError: The contents were not kept, as the recorded program did not read the value.
        """
        if type(tensor) is not FakeTensor:
            return tensor
        found = self._returned.pop(value.index, None)
        if found is None:
            raise RuntimeError(
                f"[smdp] the program reads or returns {value.text()}, which the model returned, in microbatch"
                f" {self._index}, and did not in the first one of these shapes; allowed: always or never"
            )
        return found

    def send(self, value: Value, tensor: Tensor, stage: int) -> None:
        """Sends a value to a stage of another rank."""
        step = self._step
        tag = step.plan.tag(value, stage, self._index, is_gradient=False)
        rank = step.rank_of[stage]
        what = f"{value.text()} of stage {value.stage} to stage {stage}, microbatch {self._index}"
        is_first = self.same is not None
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
        """Returns another stage's value for use in a stage, cut from its graph."""
        return self._bring(value, stage, self._wait)

    # What the schedule does.

    def send_to(self, stage: int, to: int) -> None:
        """Sends what a later stage uses of one."""
        for value in self._step.plan.edges.get((stage, to), ()):
            self.send(value, self._exported(value), to)

    def receive_from(self, source: int, stage: int) -> None:
        """Posts receives for what a stage uses of an earlier one."""
        for value in self._step.plan.edges.get((source, stage), ()):
            self._arrivals[value.index, stage] = self._receive(value, stage)

    def take_export(self, value: Value) -> Tensor | GradientEdge | None:
        """Returns where a value's gradient goes in, and forgets it."""
        return self._exports.pop(value.index)

    def take_leaf(self, value: Value, stage: int) -> tuple[Tensor, Tensor]:
        """Returns the leaf of another stage's value, with what the stage has used of it; forgets both."""
        if (value.index, stage) not in self._leaves:
            self._bring(value, stage, Arrival.wait)  # agreed on, and not used by this microbatch
        return self._leaves.pop((value.index, stage))

    def end_recording(self) -> None:
        """Lets go of what was kept only because it was not known yet who uses it."""
        self.same = None
        for value in self._step.plan.values:
            if not value.consumers:
                self._exports.pop(value.index, None)
            elif self._step.is_mine(value.stage):
                self._let_go(value)

    def forget_leaves(self) -> None:
        """Forgets what came from other stages: no backward will ask for it."""
        self._leaves.clear()

    def _bring(self, value: Value, stage: int, wait: Callable[[Arrival], Tensor]) -> Tensor:
        key = (value.index, stage)
        if key not in self._leaves:
            if self._step.is_mine(value.stage):
                leaf = self._exported(value).detach()
                self._note_use(value)
            else:
                arrival = self._arrivals.pop(key, None) or self._receive(value, stage)
                if self.same is not None:
                    self.same.check_answer(arrival, self._step.rank_of[value.stage], value.text())
                leaf = wait(arrival)
                if self.same is not None:
                    leaf = self._in_strides(leaf, value, stage)
            used = leaf
            if value.needs_grad and self._step.needs_grad:
                # Not the leaf itself, so that later consumers' gradients are the first that autograd adds.
                used = leaf.requires_grad_().view_as(leaf)
            self._leaves[key] = leaf, used
        return self._leaves[key][1]

    def _in_strides(self, leaf: Tensor, value: Value, stage: int) -> Tensor:
        """Gives what has arrived the strides that it has where it comes from."""
        arrival = self._receive(value, stage, torch.empty(leaf.dim(), dtype=torch.int64, device="cpu"))
        value.strides = tuple(self._wait(arrival).tolist())
        return leaf.as_strided(leaf.shape, value.strides)

    def _receive(self, value: Value, stage: int, room: Tensor | None = None) -> Arrival:
        step = self._step
        source = step.rank_of[value.stage]
        what = f"{value.text()} of stage {value.stage} on rank {source}, microbatch {self._index}"
        tag = step.plan.tag(value, stage, self._index, is_gradient=False)
        room = room_for(value, strides_of(value)) if room is None else room
        return step.values.receive(room, source, tag, what)

    def _exported(self, value: Value) -> Tensor:
        found = self._exports[value.index]
        assert isinstance(found, Tensor)
        return found

    def _note_use(self, value: Value) -> None:
        self._uses[value.index] += 1
        if self.same is None:
            self._let_go(value)

    def _let_go(self, value: Value) -> None:
        """Keeps the graph of a value that all its consumers have, without the contents."""
        if self._uses[value.index] < len(value.consumers):
            return
        tensor = self._exported(value)
        if tensor.requires_grad:
            self._exports[value.index] = get_gradient_edge(tensor)
        elif not value.needs_grad or not self._step.needs_grad:
            self._exports[value.index] = None
