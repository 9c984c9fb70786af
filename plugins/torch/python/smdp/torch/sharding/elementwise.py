"""Finds out whether an optimizer updates each element by itself."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

_ELEMENTS = 24
_CUT = 7
_STEPS = 3
_RATE = 0.1  # the script's own may be too small to change anything, for example in a warm-up
_ADVICE = (
    " so it cannot be cut into shards. Use an elementwise optimizer such as SGD, Adam, AdamW, Adagrad or"
    " RMSprop, or leave this one unsharded."
)


class StateKeys(NamedTuple):
    """The keys that an optimizer stores for each parameter.

    Attributes:
        per_element: Keys of tensors of the parameter's shape.
        per_parameter: Keys of everything else.
    """

    per_element: frozenset[Any]
    per_parameter: frozenset[Any]

    def merged(self, other: StateKeys) -> StateKeys:
        """Returns the keys of both."""
        return StateKeys(self.per_element | other.per_element, self.per_parameter | other.per_parameter)


class _Trial(NamedTuple):
    values: Tensor
    keys: StateKeys


def check_elementwise(optimizer: Optimizer, groups: Iterable[Mapping[str, Any]]) -> StateKeys:
    """Checks that some steps on a small parameter give the same bits whether it is whole or cut.

    Args:
        optimizer: The optimizer, which is not changed.
        groups: Groups of its options.

    Returns:
        The keys of the state that these steps have created.

    Raises:
        ValueError: The results differ, the optimizer does not accept pieces of a matrix, or its steps change
            nothing.
    """
    name = type(optimizer).__name__
    keys = StateKeys(frozenset(), frozenset({"step"}))
    start = _random(0)
    for number, group in enumerate(groups):
        try:
            tried = [
                _trained(optimizer, group, start, sizes)
                for sizes in ((_ELEMENTS,), (_CUT, _ELEMENTS - _CUT), None, (_CUT,))
            ]
        except (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError) as error:
            raise ValueError(
                f"[smdp] ShardedOptimizer: {name} cannot update a small parameter, whole and cut"
                f" (group {number}: {type(error).__name__}: {error}),{_ADVICE}"
            ) from error
        whole = tried[0].values
        if any(not torch.equal(whole[: one.values.numel()], one.values) for one in tried):
            raise ValueError(
                f"[smdp] ShardedOptimizer: the update that {name} makes of one element depends on other"
                f" elements of the parameter (group {number}),{_ADVICE}"
            )
        if torch.equal(whole, start):
            raise ValueError(
                f"[smdp] ShardedOptimizer: {_STEPS} steps of {name} did not change a small parameter (group"
                f" {number}), so smdp cannot find out whether its update is elementwise. Wrap the optimizer"
                " with options with which it updates parameters."
            )
        for one in tried:
            keys = keys.merged(one.keys)
    return keys


def _random(seed: int) -> Tensor:
    return torch.randn(_ELEMENTS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _trained(
    optimizer: Optimizer, group: Mapping[str, Any], start: Tensor, sizes: tuple[int, ...] | None
) -> _Trial:
    """Returns the parameters after some steps in float64.

    Args:
        optimizer: Gives the class.
        group: Gives the options.
        start: The parameters before.
        sizes: Of the pieces, from the first element on; None: one whole matrix.
    """

    def pieces_of(whole: Tensor) -> list[Tensor]:
        if sizes is None:
            return [whole.clone().view(4, -1)]
        return [piece.clone() for piece in whole[: sum(sizes)].split(list(sizes))]

    parameters = [Parameter(piece) for piece in pieces_of(start)]
    trial = object.__new__(type(optimizer))
    trial.__dict__ = dict(optimizer.__dict__)
    # The hooks are the script's; a step that it has not made must not call them.
    trial._optimizer_step_pre_hooks = OrderedDict()
    trial._optimizer_step_post_hooks = OrderedDict()
    options = {key: _copied(value) for key, value in group.items() if key not in ("params", "param_names")}
    if "lr" in options:
        rate = options["lr"]
        options["lr"] = torch.full_like(rate, _RATE) if isinstance(rate, Tensor) else _RATE
    trial.state = defaultdict(dict)
    trial.param_groups = [{**options, "params": parameters}]
    with torch.no_grad():
        for step in range(_STEPS):
            for parameter, piece in zip(parameters, pieces_of(_random(1 + step)), strict=True):
                parameter.grad = piece
            type(optimizer).step(trial)
    per_element: set[Any] = set()
    per_parameter: set[Any] = set()
    for parameter in parameters:
        for key, value in trial.state.get(parameter, {}).items():
            is_cut = isinstance(value, Tensor) and value.shape == parameter.shape
            (per_element if is_cut else per_parameter).add(key)
    values = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    return _Trial(values, StateKeys(frozenset(per_element), frozenset(per_parameter)))


def _copied(value: object) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
