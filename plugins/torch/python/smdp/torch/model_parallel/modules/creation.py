"""Contexts in which models are created: without memory, or in a dtype; stubs for tensor parallelism."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from smdp.torch.initialization.delayed_initialization import delayed_initialization


@contextlib.contextmanager
def delay_param_initialization(enabled: bool = True) -> Iterator[None]:
    """Creates models without memory while the context is open.

    Each rank initializes its partition when the model is cut.

    The values are the same as those of an ordinary model with the same seed.

    Args:
        enabled: False: the context has no effect.
    """
    with delayed_initialization() if enabled else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def tensor_parallelism(enabled: bool = True, **kwargs: Any) -> Iterator[None]:
    """Has no effect, because tensor_parallel_degree is 1. Can also be used as a decorator."""
    yield


def set_tensor_parallelism(module: nn.Module, enabled: bool = True, **kwargs: Any) -> None:
    """Has no effect, because tensor_parallel_degree is 1 and the module stays whole."""


@contextlib.contextmanager
def model_creation(
    tensor_parallelism: bool = False, dtype: torch.dtype | None = None, **tensor_parallel_config: Any
) -> Iterator[None]:
    """Creates models without memory and in a dtype while the context is open.

    Args:
        tensor_parallelism: Has no effect, because tensor_parallel_degree is 1.
        dtype: Default dtype of the model's parameters. None: torch's default dtype.
        **tensor_parallel_config: Has no effect.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        with delayed_initialization():
            yield
    finally:
        torch.set_default_dtype(before)
