"""The backward of one stage for one microbatch: gradients come from its consumers and go to its sources."""

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
    """Accumulate gradients of the stage's parameters, and leave those of its inputs in `gradients`.

    Parameters whose gradients are postponed are left to backward_weight().

    Args:
        plan: Edges.
        microbatch: Its values; those of this stage are forgotten.
        stage: Virtual stage.
        scale: Makes of the microbatch's loss what backward begins with.
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
            # Edges are static: what the stage did not use after all gets zeros.
            gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            # .grad has the strides of its leaf, which is not what one process goes on with.
            if stage not in value.gradient_strides:
                _note_strides(value, stage, gradient)
            strides = value.gradient_strides[stage]
            microbatch.gradients.put(value, stage, laid_out(gradient, strides))
        elif leaf.grad is not None:
            raise RuntimeError(
                f"[smdp] {value.text()} of stage {value.stage} has a gradient on stage {stage} in microbatch"
                f" {microbatch.index}, and had none in the first microbatch of these shapes. Which values the"
                " loss depends on may not change from microbatch to microbatch: multiply by 0 instead of"
                " leaving out or detaching."
            )


def _note_strides(value: Value, stage: int, gradient: Tensor) -> None:
    value.gradient_strides.setdefault(stage, dense_strides(gradient))


def backward_weight(microbatch: Microbatch, stage: int) -> None:
    """Accumulate the gradients that backward() has postponed."""
    postponed = microbatch.gradients.take_postponed(stage)
    if postponed is not None:
        with without_autocast():
            postponed.compute()
