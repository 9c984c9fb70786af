"""Restricts the Trainer's or the user's optimizer to the parameters of this rank."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.optim import Optimizer
from transformers import Trainer

from smdp.torch import PipelinedModule


def make_optimizer(trainer: Trainer, pipe: PipelinedModule, make: Callable[[], Optimizer]) -> Optimizer:
    """Creates the Trainer's optimizer for this rank's parameters, or removes others from the user's.

    All groups stay, even without parameters on this rank, because learning rate schedules and the log refer
    to groups by position.

    Raises:
        ValueError: The user's optimizer has none of this rank's parameters.
    """
    is_users = trainer.optimizer is not None
    own = {id(parameter) for parameter in pipe.parameters()}
    with _named_only(trainer.model, own):
        optimizer = make()
    for group in optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if id(parameter) in own]
    trains = any(parameter.requires_grad for parameter in pipe.parameters())
    if is_users and trains and not any(group["params"] for group in optimizer.param_groups):
        raise ValueError(
            f"[smdp] optimizers=({type(optimizer).__name__}, ...) has no parameter of this rank's stages."
            " The optimizer was created for a different model, or before its parameters had memory. Pass"
            " optimizer_cls_and_kwargs instead, which creates the optimizer after the model is split."
        )
    return optimizer


@contextlib.contextmanager
def _named_only(model: nn.Module, own: set[int]) -> Iterator[None]:
    """Limits `model.named_parameters()` to these parameters, because optimizers refuse meta tensors."""
    named = model.named_parameters

    def named_parameters(*args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return (pair for pair in named(*args, **kwargs) if id(pair[1]) in own)

    model.named_parameters = named_parameters
    try:
        yield
    finally:
        del model.named_parameters
