"""Whole values of models and optimizers in shards, for the checkpoints of other libraries."""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.sharded_parameters.whole_state import like, shard_of
from smdp.torch.sharding.trial import STEPS, random_values, trained


def whole_values(model: nn.Module, *, is_kept: bool) -> OrderedDict[str, Any]:
    """Returns the state dict of a model with whole tensors. Collective over the ranks with its shards.

    Tied parameters are the same tensor, as in the model. The ranks gather one tensor at a time.

    Args:
        model: The module of a ShardedDataParallel, or a part of it.
        is_kept: Whether this rank keeps the tensors. The result is empty if not.
    """
    wholes: dict[int, Tensor] = {}
    found: OrderedDict[str, Any] = OrderedDict()  # as torch's, by which Accelerate tells models
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, DTensor) and id(value) not in wholes:
            whole = value.full_tensor().detach()
            wholes[id(value)] = whole.cpu() if is_kept else whole[:0]
        if is_kept:
            found[name] = wholes[id(value)] if isinstance(value, DTensor) else _detached(value)
    return found


class GatheredStates:
    """Makes an optimizer of shards save and load the state that one of whole parameters has.

    Args:
        optimizer: The optimizer, created from the parameters of a ShardedDataParallel. It tries some steps on
            small shards, so all ranks with shards make this object together.

    Raises:
        ValueError: The optimizer cannot update shards.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        _check_steps(optimizer)
        self._optimizer = weakref.ref(optimizer)
        self._whole: dict[int, dict[str, Any]] | None = None
        optimizer.register_state_dict_post_hook(self._hand_over)
        optimizer.register_load_state_dict_pre_hook(_take_shards)

    def collect(self, *, is_kept: bool) -> None:
        """Gathers the state. Collective over the ranks with shards.

        Args:
            is_kept: Whether the next `state_dict()` of the optimizer on this rank has the whole state. It has
                the shards otherwise.
        """
        optimizer = self._optimizer()
        assert optimizer is not None  # it owns this object
        found = {}
        for index, parameter in enumerate(_parameters(optimizer)):
            if parameter in optimizer.state:
                values = optimizer.state[parameter].items()
                found[index] = {key: _whole(value, is_kept=is_kept) for key, value in values}
        self._whole = found if is_kept else None

    def _hand_over(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        whole, self._whole = self._whole, None
        return state_dict if whole is None else {**state_dict, "state": whole}


def _check_steps(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        if (error := _refusal(optimizer, group)) is not None:
            reason = str(error).partition("\n")[0]
            raise ValueError(
                f"[smdp] ShardedDataParallel: {type(optimizer).__name__} cannot update parameters in shards:"
                f" {reason} Use an optimizer that can, such as SGD, Adam, AdamW or Muon, or"
                " ShardedOptimizer (shard_optimizer) in place of ShardedDataParallel (shard_parameters)."
            ) from error


def _refusal(optimizer: Optimizer, group: dict[str, Any]) -> RuntimeError | None:
    """Returns the error of steps on small shards with the options of a group, or None."""
    # One parameter for each number of dimensions, because matrices may have a rule of their own.
    kinds = {one.dim(): one for one in group["params"] if isinstance(one, DTensor)}
    values = [[_small(one, number) for one in kinds.values()] for number in range(1 + STEPS)]
    with contextlib.suppress(Exception):  # such as that of a step that needs a closure
        try:
            trained(optimizer, group, values)
        except RuntimeError as error:
            return error
    return None


def _small(own: DTensor, number: int) -> DTensor:
    part = random_values(2 ** own.dim(), number).reshape([2] * own.dim()).to(own.device, own.dtype)
    return DTensor.from_local(part, own.device_mesh, own.placements, run_check=False)


def _take_shards(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Replaces whole values of a state by this rank's shards."""
    parameters = _parameters(optimizer)
    states = {}
    for index, state in state_dict["state"].items():
        own = parameters[index] if isinstance(index, int) and index < len(parameters) else None
        states[index] = (
            {key: _shard(value, own, key) for key, value in state.items()}
            if isinstance(own, DTensor) and isinstance(state, dict)
            else state
        )
    return {**state_dict, "state": states}


def _shard(value: Any, own: DTensor, key: str) -> Any:
    if not isinstance(value, Tensor) or isinstance(value, DTensor) or value.dim() == 0:
        return value
    if value.shape != own.shape:
        raise ValueError(
            f"[smdp] ShardedDataParallel: {key!r} of the saved optimizer has the shape"
            f" {list(value.shape)}, and its parameter {list(own.shape)}. Shards can be taken of states with"
            " the shape of the parameter, such as those of SGD, Adam and AdamW. Use one of these optimizers,"
            " or start without the saved state."
        )
    return like(own, shard_of(value, own).to(own.device, copy=True).contiguous())


def _whole(value: Any, *, is_kept: bool) -> Any:
    if isinstance(value, DTensor):
        whole = value.full_tensor()
        return whole.cpu() if is_kept else None
    return value


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _parameters(optimizer: Optimizer) -> list[Parameter]:
    return [one for group in optimizer.param_groups for one in group["params"]]
