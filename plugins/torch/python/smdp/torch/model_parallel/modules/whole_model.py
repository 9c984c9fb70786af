"""The user's model while it is whole: before it is cut, through what wraps it, and again after training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import _IncompatibleKeys

from smdp.torch.model_parallel.modules.single_partition import SinglePartition
from smdp.torch.pipelining.state_dicts.state_entries import check_shape, names_of, nearest


class Wrapped:
    """Stands between a DistributedModel and its model: scripts go two levels down."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


def check_state(
    model: nn.Module, given: Mapping[str, Any], *, strict: bool, is_partial: bool
) -> _IncompatibleKeys:
    """Check a state dict for a model that is not cut yet.

    Args:
        model: Its parameters may be meta tensors.
        given: Without the mark of a partial one.
        strict: Refuse names that are missing, and names that the model lacks.
        is_partial: It is a rank's; what it lacks others may have.

    Returns:
        Names that are missing, and names that the model lacks, as torch gives them.

    Raises:
        ValueError: See `strict`; or a shape differs.
    """
    own = model.state_dict(keep_vars=True)
    missing = [] if is_partial else [name for name in own if name not in given]
    unexpected = [name for name in given if name not in own]
    if strict and missing:
        raise ValueError(
            f"[smdp] the state dict lacks {names_of(missing)}; allowed: the {len(own)} entries of the model,"
            " what local_state_dict() gave, or strict=False"
        )
    if strict and unexpected:
        raise ValueError(
            f"[smdp] the state dict holds {names_of(unexpected)}, which the model lacks"
            f"{nearest(unexpected[0], own)}; load with strict=False to leave them out"
        )
    for name, value in own.items():
        if name in given and isinstance(value, Tensor):
            check_shape(name, given[name], value)
    return _IncompatibleKeys(missing, unexpected)


def gathered_again(model: nn.Module, whole: Mapping[str, Tensor]) -> SinglePartition:
    """Give a model all of its parameters back, on the CPU."""
    made: dict[int, nn.Parameter] = {}
    for prefix, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                value = whole[f"{prefix}.{key}" if prefix else key]
                made[id(parameter)] = nn.Parameter(value, requires_grad=parameter.requires_grad)
            module._parameters[key] = made[id(parameter)]
    model.load_state_dict(whole, strict=False)
    return SinglePartition(model, None, passes_per_step=1, is_mean=True, options={})
