"""Models with parameters of 16 bits: the keys `fp16` and `fp16_params`, and `smp.fp16.FP16_Module`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from smdp.torch.model_parallel.job.configuration import Configuration
from smdp.torch.model_parallel.nn.distributed_module import DistributedModule
from smdp.torch.precision.lowered_model import check_parameters, lower

_FIX = "Build it in smp.model_creation(dtype=torch.float16)"


def lower_by_keys(model: nn.Module, configuration: Configuration) -> None:
    """Converts a model to fp16 if the configuration says so, in place.

    With `fp16`, also positional inputs of the model are converted, and its outputs to fp32. With
    `fp16_params` alone, only distributed modules are converted, with their inputs, and their outputs to fp32,
    in which the rest of the model computes. A model in shards that computes in 16 bits is not converted here.

    Raises:
        ValueError: A parameter has bf16.
    """
    if configuration.fp16 and configuration.sharded_data_parallel_degree == 1:
        check_parameters('"fp16": True', model, torch.float16, _FIX)
        lower(model, torch.float16, keyword_inputs=False)
    elif configuration.fp16_params and not (configuration.fp16 or configuration.bf16):
        for module in _outermost_distributed(model):
            lower(module, torch.float16)


def _outermost_distributed(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, DistributedModule):
        yield module
    else:
        for child in module.children():
            yield from _outermost_distributed(child)


class FP16_Module(nn.Module):
    """Wraps a model whose parameters have fp16.

    Positional inputs are converted to fp16 and outputs to fp32, also inside of tuples and lists. State dicts
    and names are those of the model. With `"fp16": True`, `smp.DistributedModel` does the same itself.

    Args:
        module: The model, which is converted in place.

    Attributes:
        module: The model.

    Raises:
        ValueError: A parameter has bf16.
    """

    module: nn.Module

    def __init__(self, module: nn.Module) -> None:
        check_parameters("FP16_Module", module, torch.float16, _FIX)
        self._share(lower(module, torch.float16, keyword_inputs=False))

    @classmethod
    def around(cls, module: nn.Module) -> FP16_Module:
        """Returns a wrapper of a model that converts inputs and outputs itself already."""
        made = cls.__new__(cls)
        made._share(module)
        return made

    def _share(self, module: nn.Module) -> None:
        super().__init__()
        # Shares the model's children instead of registering the model, so that names stay the same.
        self.__dict__ |= {name: vars(module)[name] for name in ("_modules", "_parameters", "_buffers")}
        self.__dict__["module"] = module
        self.training = module.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model."""
        return self.module(*args, **kwargs)

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Yields the modules of the model."""
        yield from self.module.named_modules(memo, prefix, remove_duplicate)

    def __getattr__(self, name: str) -> Any:
        """Returns attributes of the model."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["module"], name)
