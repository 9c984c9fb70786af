"""Names of an optimizer's parameters, as scripts pass them to DistributedOptimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Parameter


def with_names(
    optimizer: torch.optim.Optimizer, given: Iterable[tuple[str, Parameter]] | None
) -> list[tuple[str, Parameter]]:
    """Returns the optimizer's parameters that require gradients, with their names.

    Args:
        optimizer: A torch optimizer.
        given: The script's named_parameters. If None, parameters are numbered.

    Raises:
        ValueError: `given` is not pairs of a name and a parameter, has a name twice, or lacks a parameter of
            the optimizer.
    """
    own = [p for group in optimizer.param_groups for p in group["params"]]
    pairs = [(f"parameter {i}", p) for i, p in enumerate(own)] if given is None else _pairs(given)
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"[smdp] named_parameters has {twice[0]!r} twice; names must be unique.")
    known = {id(parameter): name for name, parameter in pairs}
    missing = [parameter for parameter in own if id(parameter) not in known]
    if missing:
        raise ValueError(
            f"[smdp] named_parameters lacks {len(missing)} of the optimizer's {len(own)} parameters, the"
            f" first of shape {list(missing[0].shape)}. Pass model.named_parameters()."
        )
    return [(known[id(parameter)], parameter) for parameter in own if parameter.requires_grad]


def _pairs(given: object) -> list[tuple[str, Parameter]]:
    pairs: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ValueError(
                f"[smdp] named_parameters has a {type(pair).__name__} instead of a pair of a name and a"
                " parameter. Pass model.named_parameters()."
            )
    return pairs
