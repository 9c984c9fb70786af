"""Pairs of options that save memory, and which of them are refused, for the tests of all plugins."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

# Arguments by a short name; "DISK" is replaced by a folder.
OPTIONS: dict[str, dict[str, Any]] = {
    "recompute": {"recompute": "each"},
    "offload": {"offload": "disk:DISK"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "shard_optimizer": {"shard_optimizer": True},
    "shared": {"shard_optimizer": {"share_parameters": True, "offload": "disk:DISK"}},
    "shard_parameters": {"shard_parameters": {"degree": 2, "persistence_threshold": 100}},
    "compression": {"compression": "bf16"},
    "bucket_cap_mb": {"bucket_cap_mb": 1.0},
}
# What errors of refused pairs say.
_HAS_STATE = "shards of parameters have shards of the optimizer's state already. Leave shard_optimizer out"
REFUSED = {
    ("shard_optimizer", "shard_parameters"): _HAS_STATE,
    ("shared", "shard_parameters"): _HAS_STATE,
    ("fp16", "shard_parameters"): "a loss scale that all ranks agree on. Use precision='bf16'",
    ("shard_parameters", "compression"): "shards travel uncompressed. Use shard_optimizer",
    ("shard_parameters", "bucket_cap_mb"): "gradients are sent unit by unit, not in fusion buffers. Leave",
}
_ROUNDING = ("bf16", "fp16", "compression")

Result = tuple[list[float], Tensor]


def check_pairs(make: Callable[..., Callable[[], Result]], names: list[str]) -> None:
    """Trains with each pair of options, and with none.

    Args:
        make: Takes arguments and returns a function that trains and returns losses and how far each weight
            has moved. It makes the plugin, which refuses what cannot be used together.
        names: Those of the options.
    """
    losses, moved = make()()
    assert moved.norm() > 0
    for one, other in itertools.combinations(names, 2):
        if OPTIONS[one].keys() & OPTIONS[other].keys():
            continue  # the same argument with two values
        given = _placed({**OPTIONS[one], **OPTIONS[other]})
        if (one, other) in REFUSED:
            with pytest.raises(ValueError, match=rf"^\[smdp\] .*{re.escape(REFUSED[one, other])}"):
                make(**given)
            continue
        is_rounded = bool({one, other}.intersection(_ROUNDING))
        told, values = make(**given)()
        tolerance = 0.02 if is_rounded else 1e-5
        assert torch.allclose(torch.tensor(told), torch.tensor(losses), rtol=tolerance), (one, other)
        # Untrained weights would be off by 1, and rounded weights move in steps.
        error = float((values - moved).norm() / moved.norm())
        assert error < (0.25 if is_rounded else 1e-3), (one, other, error)


def whole(model: nn.Module) -> Tensor:
    """Returns all parameters in 32 bits, gathered from shards if there are any."""
    values = [one.full_tensor() if isinstance(one, DTensor) else one for one in model.parameters()]
    return torch.cat([one.detach().float().flatten() for one in values])


def _placed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _placed(inner) for key, inner in value.items()}
    return value.replace("DISK", os.environ["SMDP_TEST_FOLDER"]) if isinstance(value, str) else value
