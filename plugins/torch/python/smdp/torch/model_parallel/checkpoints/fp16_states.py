"""The file `fp16_states_*.pt` of a partial checkpoint: what an optimizer with fp16 has, under SMP's names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smdp.torch.precision.mixed_precision import STATE
from smdp.torch.sharding.master_parameters import MASTER

_MASTERS = "fp32_from_fp16"
_SCALE = "loss_scaler"
_OPTIMIZER = "optimizer_state_dict"


def split_states(found: Mapping[str, Any], optimizer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what the file of the optimizer keeps, and what `fp16_states_*.pt` has.

    The latter has the state in the form of torch, without masters, under `optimizer_state_dict`. The former
    has the groups and what smdp needs to resume.

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
        _OPTIMIZER: {
            "state": {index: each for index, each in rest.items() if each},
            "param_groups": found["param_groups"],
        },
        _MASTERS: masters,
    }
    return {**kept, "state": {}}, extra


def joined_states(rest: Mapping[str, Any], extra: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns the state that `split_states()` was given.

    Args:
        rest: What the file of the optimizer has.
        extra: What `fp16_states_*.pt` has.
        path: The latter file, for messages.

    Raises:
        ValueError: `extra` lacks a key.
    """
    lacking = [key for key in (_SCALE, _OPTIMIZER, _MASTERS) if key not in extra]
    if lacking:
        raise ValueError(
            f"[smdp] {path} has no {', '.join(map(repr, lacking))}, so the optimizer cannot be resumed; use"
            " the file that smp.save_checkpoint() wrote, or pass load_optimizer=False"
        )
    states = {index: dict(each) for index, each in extra[_OPTIMIZER]["state"].items()}
    for index, master in extra[_MASTERS].items():
        states.setdefault(index, {})[MASTER] = master
    return {**rest, "state": states, STATE: extra[_SCALE]}
