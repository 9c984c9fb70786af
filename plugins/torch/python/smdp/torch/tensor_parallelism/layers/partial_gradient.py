"""Parameters that several ranks hold, and of whose gradient each of them computes a part."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from smdp.torch.mesh.cuts import cut_of
from smdp.torch.mesh.slices import Slices
from smdp.torch.tensor_parallelism.collectives import sum_
from smdp.torch.tensor_parallelism.functions import copy_to_ranks
from smdp.torch.tensor_parallelism.layers.sequence import SequenceSlices
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


def sum_gradients(
    module: nn.Module,
    axis: TensorAxis,
    names: Sequence[str] | None = None,
    sequence: SequenceSlices | None = None,
) -> None:
    """Makes backward sum the gradients of a module's own parameters over the ranks.

    A hook on `.grad` would sum what earlier microbatches have added once more, so the sum is a part of the
    graph: reading a parameter in the module's forward returns a copy whose gradient is summed.

    A parameter that is cut is summed over the ranks that hold the same slice.

    Args:
        module: The module.
        axis: The ranks.
        names: Names of the parameters. Default: all of them.
        sequence: If passed, gradients are summed only while the module works on slices of the sequence.
    """
    own = tuple(name for name, parameter in module._parameters.items() if parameter is not None)
    changed: Any = module
    changed.__class__ = _derived(changed.__class__, own if names is None else tuple(names))
    changed._smdp_sums = axis
    changed._smdp_sums_if = sequence


@functools.cache
def _derived(present: Any, names: tuple[str, ...]) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Only the module's own forward reads copies; other code finds the parameters with their gradients.
        self._smdp_is_in_forward = True
        try:
            return present.forward(self, *args, **kwargs)
        finally:
            self._smdp_is_in_forward = False

    members: dict[str, Any] = {name: property(functools.partial(_read, name=name)) for name in names}
    made = type(present.__name__, (present,), {**members, "forward": forward})
    made.__module__ = present.__module__
    return made


def _read(module: Any, name: str) -> Tensor | None:
    parameter: Tensor | None = module._parameters[name]
    is_used = module.__dict__.get("_smdp_is_in_forward", False) and torch.is_grad_enabled()
    if parameter is None or not (parameter.requires_grad and is_used):
        return parameter
    sequence: SequenceSlices | None = module._smdp_sums_if
    if sequence is not None and not sequence.is_on:
        return parameter
    axis: TensorAxis = module._smdp_sums
    cut = cut_of(parameter)
    if cut is None or cut.slices is None:
        return copy_to_ranks(parameter, axis)
    return _Shared.apply(parameter, cut.slices, axis)


class _Shared(torch.autograd.Function):
    """The gradient of a slice is the sum over the ranks that hold it: slices of the summed whole gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, slices: Slices, axis: TensorAxis) -> Tensor:
        ctx.slices, ctx.axis = slices, axis
        return tensor.view_as(tensor)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        whole = gradient.new_zeros(ctx.slices.shape)
        ctx.slices.put(gradient, whole)
        sum_(whole, ctx.axis.number)
        return ctx.slices.take(whole), None, None
