"""Copies the values of a whole model to all ranks that will hold slices of it."""

from __future__ import annotations

import functools
import hashlib
import logging
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

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
    own = {name: digest_of(tensor) for name, tensor in tensors.items()}, random_trace(model)
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


def digest_of(tensor: Tensor) -> str:
    """Returns a text that differs between tensors with other values or another order of values.

    Of a DTensor, only this rank's part counts.
    """
    tensor = tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    flat = tensor.contiguous().flatten().view(torch.uint8)
    digest = hashlib.sha256()
    count = len(flat) // 8 if len(flat) >= 16384 else 0
    if count:
        if flat.storage_offset() % 8:
            flat = flat.clone()
        # Words times odd factors that depend on the place, modulo 2^32, and sums of pairs of these, modulo
        # 2^64: about as fast as memory, also on a GPU.
        words, factors = flat[: count * 8].view(torch.int32), _factors(flat.device)
        parts = words.split(len(factors))
        sums = [(part * factors[: len(part)]).view(torch.int64).sum() for part in parts]
        digest.update(torch.stack(sums).cpu().numpy().tobytes())
    # A copy, because memory that numpy has seen cannot be resized any more, as fully_shard() does.
    digest.update(flat[count * 8 :].clone().cpu().numpy().tobytes())
    return digest.hexdigest()


@functools.cache
def _factors(device: torch.device) -> Tensor:
    limits, generator = torch.iinfo(torch.int32), torch.Generator("cpu").manual_seed(0)
    # A product of this length fits into a core's cache.
    found = torch.randint(
        limits.min, limits.max, (2**17,), generator=generator, dtype=torch.int32, device="cpu"
    )
    return (found | 1).to(device)
