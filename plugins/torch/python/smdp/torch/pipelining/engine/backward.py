"""The backward of one stage for one microbatch."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from smdp.torch.pipelining.engine.microbatch import Microbatch
from smdp.torch.pipelining.interpreter.plan import Plan
from smdp.torch.pipelining.tensors.modes import without_autocast
from smdp.torch.pipelining.tensors.values import Value
from smdp.torch.pipelining.transfers.transfers import dense_strides, laid_out


def backward(plan: Plan, microbatch: Microbatch, stage: int, scale: Callable[[Tensor], Tensor]) -> None:
    """Accumulates the gradients of the stage's parameters and stores those of its inputs in `gradients`.

    Parameters whose gradients are postponed are left to backward_weight().

    Args:
        plan: The plan of the step, which lists the values that cross stages.
        microbatch: Holds the values of this stage, which are released here.
        stage: The virtual stage.
        scale: Returns the tensor from which backward starts, given a microbatch's loss.
    """
    roots: list[Tensor | GradientEdge | None] = []
    gradients: list[Tensor | None] = []

    def add_root(value: Value, tensor: Tensor | GradientEdge | None) -> None:
        consumer = value.consumer_after(stage)
        if value.has_gradient and consumer is not None:
            roots.append(tensor)
            gradients.append(microbatch.gradients.take(value, consumer))

    for value in plan.exports(stage):
        add_root(value, microbatch.values.take_export(value))
    leaves = []
    for value in plan.imports(stage):
        leaf, used = microbatch.values.take_leaf(value, stage)
        leaves.append((value, leaf))
        if value.has_gradient and stage not in value.gradient_strides:
            leaf.register_hook(functools.partial(_note_strides, value, stage))
        add_root(value, used)
    if (loss := microbatch.loss.take_root(stage)) is not None:
        roots.append(scale(loss.reshape(())))
        gradients.append(None)
        del loss
    if roots:
        with without_autocast():
            torch.autograd.backward(roots, gradients)
    for value, leaf in leaves:
        if value.has_gradient:
            # The set of gradients is fixed, so an input that the stage did not use gets zeros.
            gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            # .grad has the strides of its leaf; a single process would continue with other strides.
            if stage not in value.gradient_strides:
                _note_strides(value, stage, gradient)
            strides = value.gradient_strides[stage]
            microbatch.gradients.put(value, stage, laid_out(gradient, strides))
        elif leaf.grad is not None:
            raise RuntimeError(
                f"[smdp] {value.text()} of stage {value.stage} has a gradient on stage {stage} in microbatch"
                f" {microbatch.index}, but had none in the first microbatch with these shapes. The loss must"
                " depend on the same values in every microbatch: multiply a value by 0 instead of omitting or"
                " detaching it."
            )


def _note_strides(value: Value, stage: int, gradient: Tensor) -> None:
    value.gradient_strides.setdefault(stage, dense_strides(gradient))


def backward_weight(microbatch: Microbatch, stage: int) -> None:
    """Accumulates the weight gradients that backward() postponed."""
    postponed = microbatch.gradients.take_postponed(stage)
    if postponed is not None:
        with without_autocast():
            postponed.compute()
