"""Joins and takes the slices in the state of an optimizer of distributed parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from smdp.torch.mesh.cuts import Cut, cut_of
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.model_parallel.modules.slices_of_state import joined_tensor


def joined_optimizer(
    state_dict: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], mesh: ParallelMesh
) -> dict[str, Any]:
    """Returns a state in which the slices of all ranks of the tensor-parallel group are joined.

    All ranks of the group must call this.

    Args:
        state_dict: The state of this rank's optimizer.
        groups: Its groups, with the parameters.
        mesh: The ranks and groups.
    """
    state = dict(state_dict["state"])
    for index, parameter, cut in _cut_parameters(state_dict, groups):
        state[index] = {
            name: joined_tensor(value, cut, mesh) if _has_shape(value, parameter.shape) else value
            for name, value in state.get(index, {}).items()
        }
    return {**state_dict, "state": state}


def own_slices_of_optimizer(
    state_dict: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns a state in which whole tensors are replaced by this rank's slices of them."""
    state = dict(state_dict["state"])
    for index, _, cut in _cut_parameters(state_dict, groups):
        slices = cut.slices
        if slices is not None and index in state:
            state[index] = {
                name: slices.take(value) if _has_shape(value, slices.shape) else value
                for name, value in state[index].items()
            }
    return {**state_dict, "state": state}


def _cut_parameters(
    state_dict: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[int, Tensor, Cut]]:
    """Yields the indices in the state of the parameters that are cut, with these."""
    for saved, group in zip(state_dict["param_groups"], groups, strict=False):
        for index, parameter in zip(saved["params"], group["params"], strict=False):
            cut = cut_of(parameter)
            if cut is not None and cut.axis == "tp":
                yield index, parameter, cut


def _has_shape(value: Any, shape: Sequence[int]) -> bool:
    return isinstance(value, Tensor) and tuple(value.shape) == tuple(shape)
