"""Contexts in which models are created: without memory, in a dtype, or for tensor parallelism."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from smdp.torch.initialization.delayed_initialization import delayed_initialization
from smdp.torch.model_parallel.tensor_parallelism import marks


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
def model_creation(
    tensor_parallelism: bool = False, dtype: torch.dtype | None = None, **tensor_parallel_config: Any
) -> Iterator[None]:
    """Creates models without memory and in a dtype while the context is open.

    Args:
        tensor_parallelism: Whether the modules are marked as in `smp.tensor_parallelism`.
        dtype: Default dtype of the model's parameters. None: torch's default dtype.
        **tensor_parallel_config: Arguments for `smp.tensor_parallelism`; ignored if that is off.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        with contextlib.ExitStack() as stack:
            if tensor_parallelism:
                stack.enter_context(marks.tensor_parallelism(**tensor_parallel_config))
            stack.enter_context(delayed_initialization())
            yield
    finally:
        torch.set_default_dtype(before)
