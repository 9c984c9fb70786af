"""Wraps the models that Accelerate prepares in smdp's DistributedDataParallel instead of torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from accelerate import Accelerator
from torch import nn

from smdp.torch.plugin_support import DistributedDataParallel, ProcessGroupSmdp


def wrap_model(
    accelerator: Accelerator,
    prepare: Callable[..., nn.Module],
    model: nn.Module,
    group: ProcessGroupSmdp,
    options: Mapping[str, Any],
    **arguments: Any,
) -> nn.Module:
    """Prepares a model for training.

    Args:
        accelerator: Its loss scaler is followed.
        prepare: The Accelerator's `prepare_model`.
        model: The model.
        group: The ranks that average the gradients.
        options: Arguments of smdp's class, which Accelerate does not pass.
        **arguments: For `prepare`.
    """

    class Configured(DistributedDataParallel):
        """smdp's class with these options."""

        def __init__(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
            super().__init__(module, *args, **{"process_group": group, **kwargs, **options})
            if accelerator.scaler is not None:
                self.follow(accelerator.scaler)

    with _replaced(Configured):
        return prepare(model, **arguments)


def wrapped_in(model: nn.Module) -> DistributedDataParallel | None:
    """Returns the wrapper that averages a prepared model's gradients, or None if it has no such wrapper."""
    inner = getattr(model, "_orig_mod", model)  # inside torch.compile's wrapper
    return inner if isinstance(inner, DistributedDataParallel) else None


@contextmanager
def _replaced(wrapper: type) -> Iterator[None]:
    """Replaces torch's class, which Accelerate looks up by name each time it wraps a model."""
    plain = nn.parallel.DistributedDataParallel
    nn.parallel.DistributedDataParallel = wrapper
    try:
        yield
    finally:
        nn.parallel.DistributedDataParallel = plain
