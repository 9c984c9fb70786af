"""Computes weight gradients separately from input gradients, for schedules that fill their bubbles with them.

A module with parameters and no children gets its own autograd graph. The backward of the stage computes only
the gradient of the module's input, and postpones the weight gradients, which come from the same graph with
the same bits.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from smdp.torch.recompute.recomputed_forward import wrap_forward
from smdp.torch.recompute.recomputed_group import used_twice

_log = logging.getLogger(__name__)
_thread = threading.local()


class PostponedGradients:
    """The postponed weight gradients of one stage and one microbatch."""

    def __init__(self) -> None:
        self._parts: list[tuple[GradientEdge, Tensor, Sequence[Tensor]]] = []

    def __enter__(self) -> None:
        _thread.collector = self

    def __exit__(self, *error: object) -> None:
        _thread.collector = None

    def add(self, output: GradientEdge, gradient: Tensor, parameters: Sequence[Tensor]) -> None:
        """Adds a module's output with its gradient."""
        self._parts.append((output, gradient, parameters))

    def compute(self) -> None:
        """Accumulates the gradients of all parameters; those of a parameter used twice are added up first."""
        if self._parts:
            outputs, gradients, parameters = zip(*self._parts, strict=True)
            self._parts.clear()
            used = {id(parameter): parameter for each in parameters for parameter in each}
            torch.autograd.backward(outputs, gradients, inputs=list(used.values()))


class _Entry(torch.autograd.Function):
    """The input of a graph of its own, as a node that does not hold the input's memory."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tensor: Tensor) -> Tensor:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise AssertionError("only the gradient of this node's output is asked for")


class _Apart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Callable[[Tensor], Tensor], tensor: Tensor, *parameters: Tensor) -> Tensor:
        ctx.collector = _thread.collector
        ctx.parameters = parameters
        ctx.entry = None
        with torch.enable_grad(), used_twice():
            leaf = tensor.detach()
            if tensor.requires_grad:
                leaf = _Entry.apply(torch.empty(0, requires_grad=True), leaf)
                ctx.entry = get_gradient_edge(leaf)
            output = call(leaf)
        # Edges instead of tensors: what recomputation does not keep must not be kept here either.
        ctx.output = get_gradient_edge(output)
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        found = None
        if ctx.entry is not None:
            (found,) = torch.autograd.grad(ctx.output, ctx.entry, gradient, retain_graph=True)
        ctx.collector.add(ctx.output, gradient, ctx.parameters)
        ctx.entry = ctx.output = None
        return (None, found, *(None for _ in ctx.parameters))


def split_backward(module: nn.Module, unit: str) -> list[str]:
    """Makes the modules of a unit postpone their weight gradients.

    Args:
        module: The unit.
        unit: Its name.

    Returns:
        Names of parameters whose gradients cannot be postponed, because their modules have children. They are
        computed together with the input gradients.
    """
    fused = []
    for name, part in module.named_modules(prefix=unit):
        own = list(part.named_parameters(recurse=False))
        if not own:
            continue
        if next(part.children(), None) is None:
            # A module whose forward returns more than a plain tensor names a method that returns one.
            method = getattr(part, "method_with_weights", "forward")
            wrap_forward(part, method, functools.partial(_postponing, module=part, name=name))
        else:
            fused += [f"{name}.{parameter}" for parameter, _ in own]
    return fused


def _postponing(original: Callable[..., Any], module: nn.Module, name: str) -> Callable[..., Any]:
    gives_tensor = has_told = False

    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal gives_tensor, has_told
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        is_simple = len(args) == 1 and not kwargs and isinstance(args[0], Tensor)
        is_apart = getattr(_thread, "collector", None) is not None
        if not (is_apart and is_simple and gives_tensor and trained):
            result = original(*args, **kwargs)
            # Placeholders pass through here before the first real call. An LSTM returns a tuple, for example.
            gives_tensor = isinstance(result, Tensor)
            if is_apart and trained and not has_told:
                has_told = True
                _log.warning(
                    "[smdp] the weight gradients of %r, a %s, are computed together with its input"
                    " gradients: only a module that takes one positional tensor and returns one tensor can"
                    " postpone them",
                    name,
                    type(module).__name__,
                )
            return result
        return _Apart.apply(original, args[0], *trained)

    return forward
