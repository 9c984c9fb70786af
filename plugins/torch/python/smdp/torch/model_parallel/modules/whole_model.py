"""The user's model while it is whole: before it is cut, and again after training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import _IncompatibleKeys

from smdp.torch.mesh.cuts import cut_of, mark_cut
from smdp.torch.model_parallel.modules.single_partition import SinglePartition
from smdp.torch.pipelining.state_dicts.state_entries import check_shape, names_of, nearest


class Wrapped:
    """An object between a DistributedModel and its model, because scripts access both levels of `.module`."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def check_state(
    model: nn.Module, given: Mapping[str, Any], *, strict: bool, is_partial: bool
) -> _IncompatibleKeys:
    """Checks a state dict for a model that is not cut yet.

    Args:
        model: The model, whose parameters may be meta tensors.
        given: The state dict, without the mark of a partial one.
        strict: Whether to raise if names are missing, or unknown to the model.
        is_partial: Whether the state dict is that of one rank; other ranks may have the names that it lacks.

    Returns:
        The missing and the unexpected keys, as in `torch.nn.Module.load_state_dict`.

    Raises:
        ValueError: See `strict`; or a shape differs.
    """
    own = model.state_dict(keep_vars=True)
    missing = [] if is_partial else [name for name in own if name not in given]
    unexpected = [name for name in given if name not in own]
    if strict and missing:
        raise ValueError(
            f"[smdp] the state dict lacks {names_of(missing)}; expected the {len(own)} entries of the model,"
            " or the result of local_state_dict(); or pass strict=False"
        )
    if strict and unexpected:
        raise ValueError(
            f"[smdp] the state dict contains {names_of(unexpected)}, which the model does not have"
            f"{nearest(unexpected[0], own)}; load with strict=False to skip them"
        )
    for name, value in own.items():
        if name in given and isinstance(value, Tensor):
            check_shape(name, given[name], value)
    return _IncompatibleKeys(missing, unexpected)


def gathered_again(model: nn.Module, whole: Mapping[str, Tensor]) -> SinglePartition:
    """Restores all parameters of a model, on the CPU, and returns the model as a single partition."""
    made: dict[int, nn.Parameter] = {}
    for prefix, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                value = whole[f"{prefix}.{key}" if prefix else key]
                made[id(parameter)] = nn.Parameter(value, requires_grad=parameter.requires_grad)
                if (cut := cut_of(parameter)) is not None:
                    mark_cut(made[id(parameter)], cut)
            module._parameters[key] = made[id(parameter)]
    model.load_state_dict(whole, strict=False)
    return SinglePartition(model, None, passes_per_step=1, is_mean=True, options={})
