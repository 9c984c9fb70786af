"""Warns if whole parameters become different on the ranks that hold slices of one model."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

import torch
from torch import nn

from smdp.torch.mesh.cuts import cut_of
from smdp.torch.tensor_parallelism.collectives import max_
from smdp.torch.tensor_parallelism.same_values import digest_of
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis

_log = logging.getLogger("smdp.torch")

# Elements. Small parameters, such as norms and biases, show the same as large ones.
_LARGEST = 1 << 16


class SameParameters:
    """A forward hook of a divided model that compares whole parameters in training forwards 2, 3, 5, 9 ...

    The ranks compute the same gradients of whole parameters, so these keep the same bits. They do not if code
    scales gradients by what it finds on each rank, as torch's own clipping does.

    Args:
        axis: The ranks that hold slices of the model.
        model: The model. Its slices are marked now, and may lose the marks where shards are gathered.
    """

    def __init__(self, axis: TensorAxis, model: nn.Module) -> None:
        self._axis = axis
        self._whole = {name for name, one in model.named_parameters() if cut_of(one) is None}
        self._forwards = 0
        self._has_warned = False

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        """Compares parameters. A forward has finished all that earlier steps left to it."""
        if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and module.training):
            return
        self._forwards += 1
        steps = self._forwards - 1
        if steps == 0 or steps & (steps - 1) or self._has_warned or self._axis.size == 1:
            return
        digest = hashlib.blake2b(digest_size=8)
        names = []
        for name, one in module.named_parameters():
            if name in self._whole and one.requires_grad and not one.is_meta and one.numel() <= _LARGEST:
                names.append(name)
                digest.update(digest_of(one).encode())
        number = int.from_bytes(digest.digest(), "little", signed=True) >> 1
        told = torch.tensor([number, -number])
        max_(told, self._axis.number)
        largest, negative = told.tolist()
        if largest != -negative:
            self._has_warned = True
            _log.warning(
                "[smdp] tensor_parallel: whole parameters, such as %s, have become different on ranks %s,"
                " which hold slices of one model. Clip with smdp.torch.clip_grad_norm_ and scale with"
                " smdp.torch.GradScaler(model), because torch's own see the gradients of this rank's slices"
                " only, and use the same learning rate on all ranks.",
                names[0],
                self._axis.mesh.ranks("tp"),
            )
