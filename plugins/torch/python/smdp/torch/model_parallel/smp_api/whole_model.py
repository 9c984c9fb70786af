"""The user's model: reached through the one that wraps it, and whole again after training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from smdp.torch.model_parallel.smp_api.single_partition import SinglePartition


class Wrapped:
    """Stands between a DistributedModel and its model: scripts go two levels down."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)


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
