"""The values that the stages of one microbatch exchange."""

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
        step: The state shared by the microbatches of the step.
        index: Index of the microbatch.
        wait: Waits for a value within the program, which may suspend meanwhile.

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
        self._leaves: dict[tuple[int, int], tuple[Tensor, Tensor | GradientEdge]] = {}
        self._uses: Counter[int] = Counter()

    @property
    def microbatch(self) -> int:
        """The index of the microbatch."""
        return self._index

    # Called by the interpreter.

    def export(self, value: Value, tensor: Tensor) -> None:
        """Keeps a value of this rank that other stages use or may use."""
        self._exports[value.index] = tensor

    def note_returned(self, value: Value, tensor: Tensor) -> None:
        """Keeps a value that the model returns, if the program may get a placeholder for it."""
        self._returned[value.index] = tensor

    def own(self, value: Value, tensor: Tensor) -> Tensor:
        """Returns the contents of a value of this rank, for which the program may have a placeholder.

        Raises:
            RuntimeError: The contents were not kept, because the recorded program did not read the value.
        """
        if type(tensor) is not FakeTensor:
            return tensor
        found = self._returned.pop(value.index, None)
        if found is None:
            raise RuntimeError(
                f"[smdp] the program reads or returns {value.text()}, which the model returned, in microbatch"
                f" {self._index}, but did not in the first microbatch with these shapes; it must do so always"
                " or never"
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
        """Returns another stage's value for use in a stage, detached from its graph."""
        return self._bring(value, stage, self._wait)

    # Called by the schedule.

    def send_to(self, stage: int, to: int) -> None:
        """Sends the values that a later stage uses of a stage."""
        for value in self._step.plan.edges.get((stage, to), ()):
            self.send(value, self._exported(value), to)

    def receive_from(self, source: int, stage: int) -> None:
        """Posts receives for the values that a stage uses of an earlier one."""
        for value in self._step.plan.edges.get((source, stage), ()):
            self._arrivals[value.index, stage] = self._receive(value, stage)

    def take_export(self, value: Value) -> Tensor | GradientEdge | None:
        """Returns and releases the tensor or edge where a value's gradient enters the graph."""
        return self._exports.pop(value.index)

    def take_leaf(self, value: Value, stage: int) -> tuple[Tensor, Tensor | GradientEdge]:
        """Returns and releases the leaf of another stage's value, and what the stage used of it."""
        if (value.index, stage) not in self._leaves:
            self._bring(value, stage, Arrival.wait)  # in the plan, but not used by this microbatch
        return self._leaves.pop((value.index, stage))

    def release_leaves(self, stage: int) -> None:
        """Releases the contents of other stages' values after a forward; autograd has what it needs."""
        for key, (leaf, used) in self._leaves.items():
            if key[1] == stage and leaf.requires_grad and isinstance(used, Tensor):
                self._leaves[key] = leaf, get_gradient_edge(used)
                hollow = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
                hollow.untyped_storage().resize_(0)
                leaf.data = hollow

    def end_recording(self) -> None:
        """Releases the values that were kept only until their consumers were known."""
        self.same = None
        for value in self._step.plan.values:
            if not value.consumers:
                self._exports.pop(value.index, None)
            elif self._step.is_mine(value.stage):
                self._let_go(value)

    def forget_leaves(self) -> None:
        """Releases the values from other stages, for a step without a backward."""
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
                # A view, so that autograd adds the gradients of later consumers first.
                used = leaf.requires_grad_().view_as(leaf)
            self._leaves[key] = leaf, used
        used = self._leaves[key][1]
        assert isinstance(used, Tensor)  # release_leaves() comes after the last use
        return used

    def _in_strides(self, leaf: Tensor, value: Value, stage: int) -> Tensor:
        """Returns a received tensor with the strides that it has on the rank that sent it."""
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
        """Once all consumers have a value, keeps only its graph and releases its contents."""
        if self._uses[value.index] < len(value.consumers):
            return
        tensor = self._exported(value)
        if tensor.requires_grad:
            self._exports[value.index] = get_gradient_edge(tensor)
        elif not value.needs_grad or not self._step.needs_grad:
            self._exports[value.index] = None
