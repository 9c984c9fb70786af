"""Trains a divided model and the same model in one process, step by step, and compares them."""

from __future__ import annotations

from typing import Any

import torch
from tensor_parallel_models import inputs_of
from torch import Tensor

from smdp.torch.mesh.cuts import cut_of


def farthest(model: Any, alone: Any, family: str, steps: int) -> tuple[float, float]:
    """Trains both for some steps of two microbatches, with the same batches and the same seeds.

    Not AdamW: it would enlarge the rounding in gradients that are zero, such as those of the keys' bias.

    Returns:
        The largest difference of a loss, and of an element of a gradient. Where a gradient has elements above
        1, its difference is relative to the largest one.
    """
    expected = dict(alone.named_parameters())
    optimizers = [
        torch.optim.SGD(each.parameters(), 1e-2, momentum=0.9, foreach=False) for each in (model, alone)
    ]
    far_loss = far_gradient = 0.0
    for step in range(steps):
        losses = []
        for each, optimizer in zip((model, alone), optimizers, strict=True):
            torch.manual_seed(step)
            optimizer.zero_grad()
            for _ in range(2):
                loss = each(**inputs_of(family)).loss
                loss.backward()
                losses.append(loss.item())
        far_loss = max(far_loss, abs(losses[0] - losses[2]), abs(losses[1] - losses[3]))
        far_gradient = max(
            far_gradient, *(_far(each, expected[name].grad, name) for name, each in model.named_parameters())
        )
        for optimizer in optimizers:
            optimizer.step()
    return far_loss, far_gradient


def farthest_in_pipeline(pipe: Any, alone: Any, family: str, steps: int) -> tuple[float, float]:
    """Trains a pipeline of two microbatches and the same model in one process, both without dropout.

    Returns:
        See farthest().
    """
    expected = dict(alone.named_parameters())
    optimizers = [
        torch.optim.SGD(each.parameters(), 1e-2, momentum=0.9, foreach=False) for each in (pipe, alone)
    ]
    far_loss = far_gradient = 0.0
    for step in range(steps):
        torch.manual_seed(step)
        inputs = inputs_of(family, 4)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = pipe.train_step(inputs).item()
        for half in (slice(0, 2), slice(2, 4)):
            part = {name: each[half] if isinstance(each, Tensor) else each for name, each in inputs.items()}
            one = alone(**part).loss / 2
            one.backward()
            loss -= one.item()
        far_loss = max(far_loss, abs(loss))
        far_gradient = max(
            far_gradient, *(_far(each, expected[name].grad, name) for name, each in pipe.named_parameters())
        )
        for optimizer in optimizers:
            optimizer.step()
    return far_loss, far_gradient


def _far(parameter: Any, whole: Tensor | None, name: str) -> float:
    gradient = parameter.grad
    if whole is None or gradient is None:
        assert whole is gradient is None, f"only one of both models has a gradient of {name}"
        return 0.0
    largest = whole.abs().max().item()
    cut = cut_of(parameter)
    if cut is not None and cut.slices is not None:
        whole = cut.slices.take(whole)
    if hasattr(gradient, "full_tensor"):  # a DTensor's
        gradient = gradient.full_tensor()
    if not whole.numel():
        return 0.0
    return (gradient - whole).abs().max().item() / max(1.0, largest)
