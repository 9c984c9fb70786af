"""Wraps the models that Accelerate prepares in smdp's DistributedDataParallel instead of torch's."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from accelerate import Accelerator
from torch import nn
from torch.optim import Optimizer

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


class PreparedModels:
    """The models that Accelerate has prepared for training."""

    def __init__(self) -> None:
        self._models: list[weakref.ref[nn.Module]] = []

    def add(self, model: nn.Module) -> None:
        """Adds a prepared model, whose optimizer will be prepared later."""
        self._models.append(weakref.ref(wrapped_in(model) or model))

    def model_of(self, optimizer: Optimizer, argument: str) -> nn.Module:
        """Returns the wrapper of the model that has the parameters of an optimizer, or this model.

        Args:
            optimizer: The optimizer.
            argument: The argument that needs the model, for the message.

        Raises:
            ValueError: No prepared model has them.
        """
        own = {id(one) for group in optimizer.param_groups for one in group["params"]}
        for reference in reversed(self._models):  # an earlier wrapper of the same model may not be collected
            model = reference()
            if model is not None and any(id(one) in own for one in model.parameters()):
                return model
        raise ValueError(
            f"[smdp] {argument}: the parameters of {type(optimizer).__name__} belong to no model that"
            " Accelerate has prepared with smdp's DataParallel before. Pass the model first:"
            " prepare(model, optimizer)."
        )


@contextmanager
def _replaced(wrapper: type) -> Iterator[None]:
    """Replaces torch's class, which Accelerate looks up by name each time it wraps a model."""
    plain = nn.parallel.DistributedDataParallel
    nn.parallel.DistributedDataParallel = wrapper
    try:
        yield
    finally:
        nn.parallel.DistributedDataParallel = plain
