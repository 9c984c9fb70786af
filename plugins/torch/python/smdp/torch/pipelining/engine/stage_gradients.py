"""The gradients of one microbatch's values, passed from the users of a value to its owner."""

from __future__ import annotations

import torch
from torch import Tensor

from smdp.torch.pipelining.engine.one_step import Step
from smdp.torch.pipelining.gradients.weight_gradients import PostponedGradients
from smdp.torch.pipelining.tensors.values import Value
from smdp.torch.pipelining.transfers.transfers import Arrival, room_for, strides_of


class StageGradients:
    """Keeps the gradients that the consumers of values have computed until the next stage takes them.

    Args:
        step: The state shared by the microbatches of the step.
        index: Index of the microbatch.
    """

    def __init__(self, step: Step, index: int) -> None:
        self._step = step
        self._index = index
        self._found: dict[tuple[int, int], Tensor | Arrival] = {}
        self._strides: dict[tuple[int, int], Arrival] = {}
        self._postponed: dict[int, PostponedGradients] = {}

    def computing(self, stage: int) -> PostponedGradients:
        """Returns the context in which a stage with postponed weight gradients computes."""
        return self._postponed.setdefault(stage, PostponedGradients())

    def take_postponed(self, stage: int) -> PostponedGradients | None:
        """Returns and releases the weight gradients that a stage has postponed."""
        return self._postponed.pop(stage, None)

    def put(self, value: Value, stage: int, gradient: Tensor) -> None:
        """Keeps the gradient of a value that a stage has computed."""
        self._found[value.index, stage] = gradient

    def take(self, value: Value, stage: int) -> Tensor:
        """Returns and releases the gradient of a value that a stage has computed."""
        found = self._found.pop((value.index, stage))
        if not isinstance(found, Arrival):
            return found
        gradient = found.wait()
        if (strides := self._strides.pop((value.index, stage), None)) is not None:
            value.gradient_strides[stage] = tuple(strides.wait().tolist())
        return gradient.as_strided(gradient.shape, value.gradient_strides[stage])

    def are_there(self, stage: int) -> bool:
        """Returns whether the backward of a stage can run without waiting for another rank."""
        plan = self._step.plan
        values = (*plan.exports(stage), *plan.imports(stage))
        found = [self._found.get((value.index, value.consumer_after(stage) or -1)) for value in values]
        return all(each.is_there() for each in found if isinstance(each, Arrival))

    def send_to(self, stage: int, to: int, *, is_first: bool) -> None:
        """Sends the gradients that a stage has computed to an earlier stage.

        Args:
            stage: The stage of this rank.
            to: The stage of another rank.
            is_first: Whether strides are not known to the other rank yet, and are also sent.
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
        """Posts receives for the gradients from a later stage; arguments are those of send_to()."""
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
