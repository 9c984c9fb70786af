"""The Trainer's optimizer, or the user's, of the parameters that this rank holds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.optim import Optimizer
from transformers import Trainer

from smdp.torch import PipelinedModule


def make_optimizer(trainer: Trainer, pipe: PipelinedModule, make: Callable[[], Optimizer]) -> Optimizer:
    """Let the Trainer make one of this rank's parameters; from the user's, take those of other ranks away.

    Groups stay as they are, also where a rank has no parameter of one: schedules of the learning rate and
    the log know them by their places.

    Raises:
        ValueError: The user's optimizer has no parameter of this rank.
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
            f"[smdp] optimizers=({type(optimizer).__name__}, ...) holds no parameter of this rank's stages:"
            " it was made of another model, or of one without memory yet. Give optimizer_cls_and_kwargs"
            " instead, and it is made when the model has been split."
        )
    return optimizer


@contextlib.contextmanager
def _named_only(model: nn.Module, own: set[int]) -> Iterator[None]:
    """Let a model name these parameters only; optimizers refuse those without memory."""
    named = model.named_parameters

    def named_parameters(*args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return (pair for pair in named(*args, **kwargs) if id(pair[1]) in own)

    model.named_parameters = named_parameters
    try:
        yield
    finally:
        del model.named_parameters
