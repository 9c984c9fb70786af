"""The file `fp16_states_*.pt` of a partial checkpoint: the loss scale and the masters, without moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smdp.torch.precision.mixed_precision import STATE
from smdp.torch.sharding.master_parameters import MASTER

_MASTERS = "fp32_from_fp16"
_SCALE = "loss_scaler"


def split_states(found: Mapping[str, Any], optimizer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a state without masters and loss scale, and these.

    Args:
        found: What `local_state_dict()` of the optimizer has returned.
        optimizer: The optimizer.
    """
    states: dict[Any, dict[str, Any]] = found["state"]
    masters = {index: each[MASTER] for index, each in states.items() if MASTER in each}
    rest = {index: {key: each[key] for key in each if key != MASTER} for index, each in states.items()}
    kept = {key: value for key, value in found.items() if key != STATE}
    extra = {
        _SCALE: found[STATE],
        "dynamic_loss_scale": optimizer.dynamic_loss_scale,
        "overflow": optimizer.overflow,
        "first_closure_call_this_step": True,
        _MASTERS: masters,
    }
    return {**kept, "state": {index: each for index, each in rest.items() if each}}, extra


def joined_states(
    rest: Mapping[str, Any], extra: Mapping[str, Any], *, with_moments: bool = True
) -> dict[str, Any]:
    """Returns the state that `split_states()` was given.

    Args:
        rest: The state without masters.
        extra: The masters and the loss scale.
        with_moments: Whether `rest` is used for more than its groups.
    """
    states = {index: dict(each) for index, each in rest["state"].items()} if with_moments else {}
    for index, master in extra[_MASTERS].items():
        states.setdefault(index, {})[MASTER] = master
    return {**rest, "state": states, STATE: extra[_SCALE]}
