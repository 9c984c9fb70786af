"""Measures a unit on random numbers if its shapes depend on values, so that fake tensors cannot run it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from smdp._errors import SmdpError
from smdp.torch.pipelining.analysis.samples import Samples
from smdp.torch.pipelining.analysis.unit_costs import UnitCost, measure, storages_of


def measure_on_random_numbers(
    name: str,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    has_gradient: Callable[[Tensor], bool],
    samples: Samples,
    error: Exception,
) -> UnitCost:
    """Returns the cost of a unit's call. Of all modules, only the unit takes memory for its parameters.

    Args:
        name: Name of the unit.
        module: The unit.
        args: Positional arguments of the call; fake tensors and other values.
        kwargs: Keyword arguments of the call.
        has_gradient: Returns whether an input has a gradient.
        samples: The samples of calls of the same kind.
        error: The error of the run on fake tensors.

    Raises:
        SmdpError: The unit fails on random numbers as well.
    """
    tensors = {key: _random(value) for key, value in module.named_parameters()}
    tensors |= {key: _random(value) for key, value in module.named_buffers()}
    real = {id(leaf): _random(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
    marked = {
        id(real[id(leaf)]) for leaf in tree_leaves((args, kwargs)) if id(leaf) in real and has_gradient(leaf)
    }
    args, kwargs = tree_map(lambda leaf: real.get(id(leaf), leaf), (args, kwargs))
    try:
        return measure(
            lambda *inputs, **options: functional_call(module, tensors, inputs, options),
            args,
            kwargs,
            has_gradient=lambda tensor: id(tensor) in marked,
            parameters=[value for value in tensors.values() if value.requires_grad],
            resident=storages_of(tensors.values()),
            samples=samples,
            repeats=0,
        )
    except (RuntimeError, NotImplementedError, IndexError, ValueError) as failure:
        raise SmdpError(
            f"[smdp] {name} cannot be traced; the error on fake tensors is: {str(error).splitlines()[0]}; on"
            f" random numbers: {failure}. Split the model without tracing, by its parameters"
        ) from failure


def _random(tensor: Tensor) -> Tensor:
    """Returns a real tensor unchanged; for any other, small random numbers, or zeros if they are integers."""
    if not (tensor.is_meta or isinstance(tensor, FakeTensor)):
        return tensor
    device = "cpu" if tensor.is_meta else tensor.device
    real = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    if tensor.is_floating_point() or tensor.is_complex():
        real.normal_(0, 0.02)
    else:
        real.zero_()
    return real.requires_grad_(tensor.requires_grad)
