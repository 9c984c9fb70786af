"""Checks a loaded state before a sharded optimizer takes its pieces of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.sharding.master_parameters import MASTER
from smdp.torch.sharding.whole_tensors import ways_to_shard


def check_loaded(optimizer: Optimizer, given: Mapping[str, Any], name_of: Callable[[Parameter], str]) -> None:
    """Checks that a whole state is that of an optimizer of the same class and of the same parameters.

    Args:
        optimizer: The wrapped optimizer, with the parameters of the model in its groups.
        given: What its `state_dict()` returned when it was not sharded, or was consolidated.
        name_of: Returns the name of a parameter.

    Raises:
        ValueError: The groups, their options, the shapes or the keys of the state differ.
    """
    groups, theirs = optimizer.param_groups, given["param_groups"]
    if [len(one["params"]) for one in theirs] != [len(one["params"]) for one in groups]:
        raise ValueError(
            "[smdp] the loaded state has parameter groups of"
            f" {[len(one['params']) for one in theirs]} parameters, and this optimizer of"
            f" {[len(one['params']) for one in groups]}. Create the optimizer with the same groups as"
            " when the state was saved."
        )
    for number, (group, saved) in enumerate(zip(groups, theirs, strict=True)):
        states = {
            parameter: state
            for parameter, key in zip(group["params"], saved["params"], strict=True)
            if (state := given["state"].get(key))
        }
        _check_states(optimizer, group, saved, states, name_of)
        if missing := optimizer.defaults.keys() - saved.keys():
            raise ValueError(
                f"[smdp] group {number} of the loaded state lacks the options {_list(missing)} of"
                f" {type(optimizer).__name__}; it has {_list(saved.keys() - {'params'})}. Load the state of"
                " an optimizer of the same class. If an older version of that class has saved it, add these"
                " options to its groups."
            )


def _check_states(
    optimizer: Optimizer,
    group: Mapping[str, Any],
    saved: Mapping[str, Any],
    states: Mapping[Parameter, Mapping[Any, Any]],
    name_of: Callable[[Parameter], str],
) -> None:
    if not states:
        return
    keys = ways_to_shard(optimizer, [{**group, **saved, "params": group["params"]}]).keys
    always = keys.always or frozenset()
    known = keys.per_element | keys.per_parameter
    is_other_class = not optimizer.defaults.keys() <= saved.keys()
    for parameter, given in states.items():
        state = {key: value for key, value in given.items() if key != MASTER}
        # Some keys are created only later, or for some shapes. Without gradients there is only a master.
        if (state and not always <= state.keys()) or (is_other_class and not state.keys() <= known):
            raise ValueError(
                f"[smdp] the loaded state has {_list(state.keys())} for parameter {name_of(parameter)!r}, and"
                f" {type(optimizer).__name__} keeps {_list(always or known)}. Load the state of an optimizer"
                " of the same class."
            )
        for key, value in given.items():
            is_large = key == MASTER or key in keys.per_element - keys.per_parameter
            if is_large and isinstance(value, Tensor) and value.shape != parameter.shape:
                raise ValueError(
                    f"[smdp] the state {key!r} has shape {tuple(value.shape)}, and its parameter"
                    f" {name_of(parameter)!r} has {tuple(parameter.shape)}. Load the state of an optimizer of"
                    " the same model."
                )


def _list(keys: Collection[Any]) -> str:
    return ", ".join(repr(key) for key in sorted(keys, key=str)) or "nothing"
