"""Weight gradients apart from input gradients, for schedules that fill their bubbles with them.

A module that has parameters and no children keeps a graph of its own: the backward of the stage asks it for
the gradient of its input only, and leaves the other half, on the same graph with the same bits, for later.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_log = logging.getLogger(__name__)
_thread = threading.local()


class PostponedGradients:
    """What is left to do for the parameters of one stage after the input gradients of one microbatch."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, Tensor, Sequence[Tensor]]] = []

    def __enter__(self) -> None:
        _thread.collector = self

    def __exit__(self, *error: object) -> None:
        _thread.collector = None

    def add(self, output: Tensor, gradient: Tensor, parameters: Sequence[Tensor]) -> None:
        """Note the gradient of a module's output."""
        self._parts.append((output, gradient, parameters))

    def compute(self) -> None:
        """Accumulate the gradients of all parameters; those of one that is used twice are added first."""
        if self._parts:
            outputs, gradients, parameters = zip(*self._parts, strict=True)
            self._parts.clear()
            used = {id(parameter): parameter for each in parameters for parameter in each}
            torch.autograd.backward(outputs, gradients, inputs=list(used.values()))


class _Apart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Callable[[Tensor], Tensor], tensor: Tensor, *parameters: Tensor) -> Tensor:
        ctx.collector = _thread.collector
        ctx.parameters = parameters
        with torch.enable_grad():
            ctx.leaf = tensor.detach().requires_grad_(tensor.requires_grad)
            ctx.output = call(ctx.leaf)
        result: Tensor = ctx.output.detach()
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        found = None
        if ctx.leaf.requires_grad:
            (found,) = torch.autograd.grad(ctx.output, ctx.leaf, gradient, retain_graph=True)
        ctx.collector.add(ctx.output, gradient, ctx.parameters)
        ctx.leaf = ctx.output = None
        return (None, found, *(None for _ in ctx.parameters))


def split_backward(module: nn.Module, unit: str) -> list[str]:
    """Let the modules below a unit, of that name, postpone their weight gradients.

    Returns:
        Names of parameters for which it cannot be done, as their module has children: their gradients come
        with those of the inputs.
    """
    fused = []
    for name, part in module.named_modules(prefix=unit):
        own = list(part.named_parameters(recurse=False))
        if not own:
            continue
        if next(part.children(), None) is None:
            part.forward = _postponing(part.forward, part, name)
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
            # Seen on placeholders before the first real call. An LSTM gives a tuple.
            gives_tensor = isinstance(result, Tensor)
            if is_apart and trained and not has_told:
                has_told = True
                _log.warning(
                    "[smdp] the weight gradients of %r, a %s, come with those of its inputs: only a module"
                    " that takes one tensor, by position, and gives one has them apart",
                    name,
                    type(module).__name__,
                )
            return result
        return _Apart.apply(original, args[0], *trained)

    return forward
