"""Steps of an optimizer on small parameters, which show how it updates."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.sharding.trial_copy import trial_copy

STEPS = 3
_RATE = 0.1  # the script's own may be too small to change anything, for example in a warm-up
# What optimizers raise for parameters that they do not accept.
REFUSALS = (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError)


class StateKeys(NamedTuple):
    """The keys that an optimizer stores for each parameter.

    Attributes:
        per_element: Keys of tensors of the parameter's shape.
        per_parameter: Keys of everything else.
        always: Those that it has stored for every parameter, whatever its shape; None if nothing was tried.
    """

    per_element: frozenset[Any]
    per_parameter: frozenset[Any]
    always: frozenset[Any] | None = None

    def merged(self, other: StateKeys) -> StateKeys:
        """Returns the keys of both."""
        known = [one.always for one in (self, other) if one.always is not None]
        return StateKeys(
            self.per_element | other.per_element,
            self.per_parameter | other.per_parameter,
            frozenset.intersection(*known) if known else None,
        )


NO_KEYS = StateKeys(frozenset(), frozenset({"step"}))


class Trial(NamedTuple):
    """The parameters after the steps, and the keys of the state."""

    values: list[Tensor]
    keys: StateKeys


def random_values(count: int, seed: int) -> Tensor:
    """Returns the same values whenever it is called, in float64."""
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def trained(optimizer: Optimizer, group: Mapping[str, Any], values: Sequence[Sequence[Tensor]]) -> Trial:
    """Makes some steps on new parameters.

    Args:
        optimizer: The optimizer to try. It is not changed.
        group: The options to try.
        values: The parameters before, then the gradients of each step.
    """
    parameters = [Parameter(one.clone()) for one in values[0]]
    trial = trial_copy(optimizer)
    options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
    options = copy.deepcopy(options)
    if "lr" in options:
        rate = options["lr"]
        options["lr"] = torch.full_like(rate, _RATE) if isinstance(rate, Tensor) else _RATE
    trial.param_groups = [{**options, "params": parameters}]
    with torch.no_grad():
        for gradients in values[1:]:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
            type(optimizer).step(trial)
    per_element: set[Any] = set()
    per_parameter: set[Any] = set()
    for parameter in parameters:
        for key, value in trial.state.get(parameter, {}).items():
            is_like = isinstance(value, Tensor) and value.shape == parameter.shape
            is_cut = is_like and key not in NO_KEYS.per_parameter
            (per_element if is_cut else per_parameter).add(key)
    always = frozenset.intersection(*(frozenset(trial.state.get(one, {})) for one in parameters))
    return Trial(
        [one.detach() for one in parameters],
        StateKeys(frozenset(per_element), frozenset(per_parameter), always),
    )
