"""Marks on the gradients of a model's output, which detect a later backward through these gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge


class Arms(Protocol):
    """Averages the gradients of a backward once it is armed."""

    def arm(self) -> None:
        """Averages the gradients of the backward under way."""

    def pass_on(self, grad: Tensor | None) -> Tensor | None:
        """Arms at a gradient of the model's output, and returns its replacement, if any."""


class OutputMarks:
    """Leaf tensors equal to 1 that the gradients of the output are multiplied by.

    With `create_graph=True`, as for a gradient penalty, there may be a second backward that starts from such
    a gradient and does not pass the output. It reaches the leaf, whose hook arms it.

    Args:
        hooks: The object that averages the gradients, kept by a weak reference.
    """

    def __init__(self, hooks: Arms) -> None:
        self._hooks = weakref.ref(hooks)
        self._marks: dict[torch.dtype, tuple[Tensor, Node]] = {}

    def on(self, grad: Tensor) -> Tensor:
        """Returns the gradient multiplied by a mark."""
        if grad.dtype not in self._marks:
            leaf = torch.ones((), dtype=grad.dtype, device="cpu", requires_grad=True)
            leaf.register_post_accumulate_grad_hook(_marked(self._hooks))
            self._marks[grad.dtype] = (leaf, get_gradient_edge(leaf).node)
        return grad * self._marks[grad.dtype][0]

    def are_passed(self) -> bool:
        """Returns whether the backward under way passes a mark."""
        return any(torch._C._will_engine_execute_node(node) for _, node in self._marks.values())


def arming(hooks: weakref.ref[Arms]) -> Callable[[Tensor | None], Tensor | None]:
    """Returns a hook for a tensor of the model's output, which arms the backward that reaches it."""

    def arm(grad: Tensor | None) -> Tensor | None:
        return None if (found := hooks()) is None else found.pass_on(grad)

    return arm


def _marked(hooks: weakref.ref[Arms]) -> Callable[[Tensor], None]:
    def marked(leaf: Tensor) -> None:
        leaf.grad = None
        if (found := hooks()) is not None:
            found.arm()

    return marked
