"""Moves what compression keeps for later steps when the means of a model become sharded."""

from __future__ import annotations

import torch

from smdp import _core
from smdp.torch.data_parallel.gradient_hooks import GradientHooks
from smdp.torch.data_parallel.reducer_options import KEEPING_COMPRESSIONS
from smdp.torch.sharding.shard_layout import ShardLayout

# Parts of a gradient, as `GradientReducer.copy_kept()` numbers them.
_PARTS = 3
_RESIDUAL = 0
_LATE = 2


def move_residuals(hooks: GradientHooks, old: _core.GradientReducer, layout: ShardLayout, first: int) -> None:
    """Moves what earlier steps have kept into the reducer whose means are sharded.

    With "int8", the owner of a sum has also kept the error of sending it. Owners of the world do not send
    sums, so they add this error to the next mean.

    Args:
        hooks: Their reducer is sharded already.
        old: Their reducer before.
        layout: Says which pieces this rank owns.
        first: The index of the first of these gradients in the layout.
    """
    if hooks.compression not in KEEPING_COMPRESSIONS or old.steps == 0:
        return
    keeps_sums = hooks.compression == "int8" and hooks.scope == "world"
    for index, (_, dtype, count) in enumerate(hooks.registered):
        if dtype is not torch.float32:
            continue
        parts = [torch.zeros(count) for _ in range(_PARTS)]
        found = [old.copy_kept(index, part, values.data_ptr()) for part, values in enumerate(parts)]
        if not any(found):
            continue
        if keeps_sums:
            for begin, end in layout.pieces[first + index]:
                parts[_LATE][begin:end] += parts[_RESIDUAL][begin:end]
                parts[_RESIDUAL][begin:end] = 0
        for part, values in enumerate(parts):
            hooks.reducer.set_kept(index, part, values.data_ptr())
    hooks.momentum.velocity = {
        index: layout.cut(first + index, velocity[0]) for index, velocity in hooks.momentum.velocity.items()
    }
