"""How models are made: without memory, in a dtype; the names of tensor parallelism, which has none yet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from smdp.torch.initialization.delayed_initialization import delayed_initialization


@contextlib.contextmanager
def delay_param_initialization(enabled: bool = True) -> Iterator[None]:
    """Build a model inside of it that takes no memory; each rank fills its partition when the model is cut.

    Values are those that the same seed gives without it.
    """
    with delayed_initialization() if enabled else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def tensor_parallelism(enabled: bool = True, **kwargs: Any) -> Iterator[None]:
    """Do nothing: tensor_parallel_degree is 1, so modules stay whole. Usable as a decorator too."""
    yield


def set_tensor_parallelism(module: nn.Module, enabled: bool = True, **kwargs: Any) -> None:
    """Do nothing: tensor_parallel_degree is 1, so the module stays whole."""


@contextlib.contextmanager
def model_creation(
    tensor_parallelism: bool = False, dtype: torch.dtype | None = None, **tensor_parallel_config: Any
) -> Iterator[None]:
    """Build a model inside of it without memory, in a dtype.

    Args:
        tensor_parallelism: Has no effect: tensor_parallel_degree is 1.
        dtype: Default dtype of the model's parameters; None: torch's.
        **tensor_parallel_config: Has no effect.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        with delayed_initialization():
            yield
    finally:
        torch.set_default_dtype(before)
