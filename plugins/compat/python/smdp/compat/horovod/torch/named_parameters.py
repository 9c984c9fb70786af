"""Names of an optimizer's parameters, as scripts give them to DistributedOptimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Parameter


def with_names(
    optimizer: torch.optim.Optimizer, given: Iterable[tuple[str, Parameter]] | None
) -> list[tuple[str, Parameter]]:
    """Returns the parameters of an optimizer that want gradients, with names.

    Args:
        optimizer: Any of torch's.
        given: What the script passes as named_parameters; None: parameters are numbered.

    Raises:
        ValueError: It is not names and parameters, has a name twice, or lacks a parameter of the optimizer.
    """
    own = [p for group in optimizer.param_groups for p in group["params"]]
    pairs = [(f"parameter {i}", p) for i, p in enumerate(own)] if given is None else _pairs(given)
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"[smdp] named_parameters has {twice[0]!r} twice; every name must be there once.")
    known = {id(parameter): name for name, parameter in pairs}
    missing = [parameter for parameter in own if id(parameter) not in known]
    if missing:
        raise ValueError(
            f"[smdp] named_parameters lacks {len(missing)} of the optimizer's {len(own)} parameters, the"
            f" first of shape {list(missing[0].shape)}. Give model.named_parameters()."
        )
    return [(known[id(parameter)], parameter) for parameter in own if parameter.requires_grad]


def _pairs(given: object) -> list[tuple[str, Parameter]]:
    pairs: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ValueError(
                f"[smdp] named_parameters has a {type(pair).__name__} in place of a name and a parameter."
                " Give model.named_parameters()."
            )
    return pairs
