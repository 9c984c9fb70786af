"""Joins and takes the shards in the state of an optimizer, with sharded data parallelism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from smdp.torch.sharded_parameters.whole_state import like, shard_of


def gathered_shards(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a state in which shards are replaced by whole tensors. All ranks of the job must call this."""
    whole = {
        index: {
            key: value.detach().full_tensor() if isinstance(value, DTensor) else value
            for key, value in each.items()
        }
        for index, each in state_dict["state"].items()
    }
    return {**state_dict, "state": whole}


def own_shards(state_dict: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a state in which whole tensors are replaced by this rank's shards of them."""
    parameters = {
        index: parameter
        for saved, group in zip(state_dict["param_groups"], groups, strict=False)
        for index, parameter in zip(saved["params"], group["params"], strict=False)
    }
    taken = {
        index: {
            key: _shard(value, parameters.get(index)) for key, value in state_dict["state"][index].items()
        }
        for index in state_dict["state"]
    }
    return {**state_dict, "state": taken}


def _shard(value: Any, parameter: Tensor | None) -> Any:
    is_like = isinstance(value, Tensor) and not isinstance(value, DTensor) and parameter is not None
    if is_like and isinstance(parameter, DTensor) and value.shape == parameter.shape:
        return like(parameter, shard_of(value, parameter).clone())
    return value
