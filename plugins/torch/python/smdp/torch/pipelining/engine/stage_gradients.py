"""Gradients of the values of one microbatch, on their way from the stages that use a value to its owner."""

from __future__ import annotations

import torch
from torch import Tensor

from smdp.torch.pipelining.engine.one_step import Step
from smdp.torch.pipelining.gradients.weight_gradients import PostponedGradients
from smdp.torch.pipelining.tensors.values import Value
from smdp.torch.pipelining.transfers.transfers import Arrival, room_for, strides_of


class StageGradients:
    """Keeps the gradients that consumers of values have found until the next stage takes them.

    Args:
        step: What the microbatch shares with the others.
        index: Number of the microbatch.
    """

    def __init__(self, step: Step, index: int) -> None:
        self._step = step
        self._index = index
        self._found: dict[tuple[int, int], Tensor | Arrival] = {}
        self._strides: dict[tuple[int, int], Arrival] = {}
        self._postponed: dict[int, PostponedGradients] = {}

    def computing(self, stage: int) -> PostponedGradients:
        """Returns the context in which a stage computes whose weight gradients are postponed."""
        return self._postponed.setdefault(stage, PostponedGradients())

    def take_postponed(self, stage: int) -> PostponedGradients | None:
        """Returns the weight gradients that a stage has postponed, and forgets them."""
        return self._postponed.pop(stage, None)

    def put(self, value: Value, stage: int, gradient: Tensor) -> None:
        """Keeps the gradient of a value that a stage has found."""
        self._found[value.index, stage] = gradient

    def take(self, value: Value, stage: int) -> Tensor:
        """Returns the gradient of a value that a stage has found, and forgets it."""
        found = self._found.pop((value.index, stage))
        if not isinstance(found, Arrival):
            return found
        gradient = found.wait()
        if (strides := self._strides.pop((value.index, stage), None)) is not None:
            value.gradient_strides[stage] = tuple(strides.wait().tolist())
        return gradient.as_strided(gradient.shape, value.gradient_strides[stage])

    def are_there(self, stage: int) -> bool:
        """Returns whether the backward of a stage would wait for no other rank."""
        plan = self._step.plan
        values = (*plan.exports(stage), *plan.imports(stage))
        found = [self._found.get((value.index, value.consumer_after(stage) or -1)) for value in values]
        return all(each.is_there() for each in found if isinstance(each, Arrival))

    def send_to(self, stage: int, to: int, *, is_first: bool) -> None:
        """Sends what a stage has found to an earlier one.

        Args:
            stage: Of this rank.
            to: Of another rank.
            is_first: Strides are not agreed on yet, and are sent as well.
        """
        step = self._step
        rank = step.rank_of[to]
        for value in step.plan.gradient_edges().get((stage, to), ()):
            gradient = self.take(value, stage)
            tag = step.plan.tag(value, stage, self._index, is_gradient=True)
            what = f"the gradient of {value.text()} to stage {to}, microbatch {self._index}"
            step.values.send(gradient, rank, tag, what)
            if is_first:
                data = torch.tensor(gradient.stride(), dtype=torch.int64, device="cpu")
                step.values.send(data, rank, tag, f"the strides of {what}")

    def receive_from(self, source: int, stage: int, *, is_first: bool) -> None:
        """Posts receives for what a later stage finds; arguments as of send_to()."""
        step = self._step
        rank = step.rank_of[source]
        for value in step.plan.gradient_edges().get((source, stage), ()):
            tag = step.plan.tag(value, source, self._index, is_gradient=True)
            what = (
                f"the gradient of {value.text()} from stage {source} on rank {rank}, microbatch {self._index}"
            )
            key = value.index, source
            self._found[key] = step.values.receive(room_for(value, strides_of(value)), rank, tag, what)
            if is_first:
                room = torch.empty(len(value.shape), dtype=torch.int64, device="cpu")
                self._strides[key] = step.values.receive(room, rank, tag, what)
