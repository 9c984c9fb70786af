"""Copies an optimizer without its parameters, so that steps of the copy change nothing of the script's."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict

from torch.optim import Optimizer

# The copy gets its own, or, in the case of `step`, that of the class.
_LEFT_OUT = ("param_groups", "state", "step")
_HOOKS = "_optimizer_"


def trial_copy(optimizer: Optimizer) -> Optimizer:
    """Returns a copy with the same attributes, but without groups, state and hooks.

    Raises:
        ValueError: An attribute cannot be copied.
    """
    made = object.__new__(type(optimizer))
    known = {id(optimizer): made}  # attributes may refer to the optimizer
    for key, value in vars(optimizer).items():
        if key in _LEFT_OUT:
            continue
        if key.startswith(_HOOKS):
            # The hooks are the script's; a step that it has not made must not call them.
            made.__dict__[key] = OrderedDict()
            continue
        try:
            made.__dict__[key] = copy.deepcopy(value, known)
        except Exception as error:
            name = type(optimizer).__name__
            raise ValueError(
                f"[smdp] ShardedOptimizer tries steps on a copy of the optimizer, and the attribute {key!r}"
                f" of {name} cannot be copied ({type(error).__name__}: {error}). Give the class of this"
                " attribute a __deepcopy__(), or leave the optimizer unsharded."
            ) from error
    made.__dict__["state"] = defaultdict(dict)
    made.__dict__["param_groups"] = []
    return made
