"""Finds out whether an optimizer updates each element by itself."""

from __future__ import annotations

import copy

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

_ELEMENTS = 24
_CUT = 7
_STEPS = 3


def check_elementwise(optimizer: Optimizer) -> None:
    """Checks that some steps on a small parameter give the same bits whether it is whole or cut in two.

    Args:
        optimizer: The optimizer, which is not changed.

    Raises:
        ValueError: The results differ, or the optimizer does not accept pieces of a matrix.
    """
    name = type(optimizer).__name__
    for number, group in enumerate(optimizer.param_groups):
        for dtype in {one.dtype for one in group["params"]}:
            tried = [
                _trained(optimizer, group, dtype, sizes)
                for sizes in ((_ELEMENTS,), (_CUT, _ELEMENTS - _CUT), None)
            ]
            if any(one is None or not torch.equal(tried[0], one) for one in tried):
                raise ValueError(
                    f"[smdp] ShardedOptimizer: the update that {name} makes of one element depends on other"
                    f" elements of the parameter (group {number}), so it cannot be cut into shards. Use an"
                    " elementwise optimizer such as SGD, Adam, AdamW, Adagrad or RMSprop, or leave this one"
                    " unsharded."
                )


def _trained(
    optimizer: Optimizer, group: dict[str, object], dtype: torch.dtype, sizes: tuple[int, ...] | None
) -> torch.Tensor | None:
    """Returns the parameters after some steps, or None if the optimizer refuses them.

    Args:
        optimizer: Gives the class.
        group: Gives the options.
        dtype: Of the parameters.
        sizes: Of the pieces; None: one whole matrix.
    """
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(_ELEMENTS, generator=generator, dtype=torch.float64).to(dtype)
    grads = [
        torch.randn(_ELEMENTS, generator=generator, dtype=torch.float64).to(dtype) for _ in range(_STEPS)
    ]
    if sizes is None:
        parameters = [Parameter(start.view(4, -1).clone())]
    else:
        parameters = [Parameter(piece.clone()) for piece in start.split(list(sizes))]
    trial = copy.copy(optimizer)
    trial.__dict__ = dict(optimizer.__dict__)
    options = {key: _copied(value) for key, value in group.items() if key not in ("params", "param_names")}
    trial.state = type(optimizer.state)(dict) if hasattr(optimizer.state, "default_factory") else {}
    trial.param_groups = [{**options, "params": parameters}]
    try:
        with torch.no_grad():
            for grad in grads:
                pieces = [grad.view(4, -1)] if sizes is None else grad.split(list(sizes))
                for parameter, piece in zip(parameters, pieces, strict=True):
                    parameter.grad = piece.clone()
                type(optimizer).step(trial)
    except (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError):
        return None
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])


def _copied(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else value
