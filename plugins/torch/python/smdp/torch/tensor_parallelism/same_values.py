"""Gives the ranks that will hold slices of one model the same values of the whole one."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from smdp.torch.initialization.delayed_initialization import random_trace
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis

_log = logging.getLogger("smdp")


def take_same_values(model: nn.Module, axis: TensorAxis) -> None:
    """Replaces parameters and buffers by those of the first rank along the tensor axis where they differ.

    Collective. Equal values, as after the same seed, cost one small message.

    Raises:
        ValueError: A model without memory was built with another seed than on the first rank.
    """
    tensors = {
        name: tensor
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if not tensor.is_meta and tensor.numel() > 0
    }
    own = {name: _digest(tensor) for name, tensor in tensors.items()}, random_trace(model)
    told: list[Any] = [None] * axis.size
    dist.all_gather_object(told, own, group=axis.group)
    first_rank = axis.mesh.ranks("tp")[0]
    first, trace = told[0]
    for rank, (_, other) in zip(axis.mesh.ranks("tp"), told, strict=True):
        if other != trace:
            raise ValueError(
                f"[smdp] tensor_parallel: ranks {first_rank} and {rank} have built the model in"
                " delayed_initialization() with different random numbers, and would get slices of different"
                " models. Call torch.manual_seed() with the same seed on both before."
            )
    differing = [name for name in first if any(digests[name] != first[name] for digests, _ in told)]
    for name in differing:
        # NCCL and others need contiguous memory, and the layout of a parameter must not change.
        whole = tensors[name].detach().contiguous()
        dist.broadcast(whole, first_rank, group=axis.group)
        tensors[name].detach().copy_(whole)
    if differing:
        _log.info(
            "[smdp] tensor_parallel: the ranks had different values of %s and %d more; all take those of rank"
            " %d",
            differing[0],
            len(differing) - 1,
            first_rank,
        )


def _digest(tensor: Tensor) -> str:
    """Returns a text that differs between tensors from different seeds."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.numel() < 4096:
        flat = tensor.contiguous().flatten().view(torch.uint8).cpu()
        return hashlib.sha256(flat.numpy().tobytes()).hexdigest()
    return str(int(torch.hash_tensor(tensor)))  # fast, but it does not depend on the order of elements
