"""What an optimizer keeps besides the state of its parameters, such as a count of steps."""

from __future__ import annotations

import copy
import math
from collections import deque
from types import BuiltinFunctionType, FunctionType, MethodType

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.sharding.trial import STEPS, random_values
from smdp.torch.sharding.trial_copy import trial_copy

# Of the first two, kept_values() takes a part. Torch sets the others, and does not count with them.
_LEFT_OUT = ("param_groups", "state", "_opt_called", "_need_device_dtype_check_for_fused")
_HOOKS = "_optimizer_"
_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType)
_CONSTANTS = (str, bytes, bool, int, float, complex, type, torch.dtype, torch.device, *_FUNCTIONS)
_DEEPEST = 4


def kept_values(optimizer: Optimizer) -> dict[object, object]:
    """Returns marks of all these values, which compare as equal only if no value has changed since.

    Marks of objects of an unknown type never compare as equal, because such an object may count.
    """
    found: dict[object, object] = {
        ("attribute", key): _mark(value)
        for key, value in vars(optimizer).items()
        if key not in _LEFT_OUT and not key.startswith(_HOOKS)
    }
    for number, group in enumerate(optimizer.param_groups):
        found["group", number] = {key: _mark(value) for key, value in group.items() if key != "params"}
    for key, value in optimizer.state.items():
        if not isinstance(key, Tensor):
            found["state", key] = _mark(value)
    return found


def keeps_per_group(optimizer: Optimizer) -> bool:
    """Returns whether an optimizer keeps something for whole groups, found by steps of a copy."""
    trial = trial_copy(optimizer)
    groups = []
    for group in optimizer.param_groups:
        options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        shapes = {tuple(range(2, 2 + one.dim())) for one in group["params"]}
        made = [Parameter(random_values(math.prod(shape), 0).view(shape)) for shape in sorted(shapes)]
        groups.append({**copy.deepcopy(options), "params": made})
    trial.param_groups = groups
    before = kept_values(trial)
    with torch.no_grad():
        for _ in range(STEPS):
            for group in groups:
                for parameter in group["params"]:
                    parameter.grad = parameter.detach().clone()
            type(optimizer).step(trial)
    return kept_values(trial) != before


def _mark(value: object, depth: int = 0) -> object:
    if value is None or isinstance(value, _CONSTANTS):
        return value
    if isinstance(value, Parameter):
        return id(value)
    if isinstance(value, Tensor):
        return id(value), value._version
    if depth < _DEEPEST:
        if isinstance(value, dict):
            return {key: _mark(one, depth + 1) for key, one in value.items()}
        if isinstance(value, list | tuple | deque):
            return [_mark(one, depth + 1) for one in value]
        if isinstance(value, set | frozenset):
            return set(value)
    return object()
