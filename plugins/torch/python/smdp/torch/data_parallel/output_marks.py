"""Marks on gradients of a model's output: they tell of a backward that comes later and passes those alone."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge


class Arms(Protocol):
    """What averages the gradients of a backward once it is told to."""

    def arm(self) -> None:
        """Averages the gradients of the backward under way."""

    def pass_on(self, grad: Tensor | None) -> Tensor | None:
        """Takes note of a gradient of the model's output, and returns what takes its place, if anything."""


class OutputMarks:
    """Leaves, each one, that gradients of the output are multiplied with.

    With `create_graph=True` there may be a backward of what comes of such a gradient, which does not pass the
    output (a gradient penalty). It passes the leaf, whose hook arms.

    Args:
        hooks: What averages the gradients.
    """

    def __init__(self, hooks: Arms) -> None:
        self._hooks = weakref.ref(hooks)
        self._marks: dict[torch.dtype, tuple[Tensor, Node]] = {}

    def on(self, grad: Tensor) -> Tensor:
        """Returns a gradient with a mark."""
        if grad.dtype not in self._marks:
            leaf = torch.ones((), dtype=grad.dtype, device="cpu", requires_grad=True)
            leaf.register_post_accumulate_grad_hook(_marked(self._hooks))
            self._marks[grad.dtype] = (leaf, get_gradient_edge(leaf).node)
        return grad * self._marks[grad.dtype][0]

    def are_passed(self) -> bool:
        """Returns whether the backward under way passes a mark."""
        return any(torch._C._will_engine_execute_node(node) for _, node in self._marks.values())


def arming(hooks: weakref.ref[Arms]) -> Callable[[Tensor | None], Tensor | None]:
    """Returns a hook for a tensor of the output."""

    def arm(grad: Tensor | None) -> Tensor | None:
        return None if (found := hooks()) is None else found.pass_on(grad)

    return arm


def _marked(hooks: weakref.ref[Arms]) -> Callable[[Tensor], None]:
    def marked(leaf: Tensor) -> None:
        leaf.grad = None
        if (found := hooks()) is not None:
            found.arm()

    return marked
