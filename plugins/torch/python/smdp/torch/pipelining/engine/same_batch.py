"""Checks that the ranks of a pipeline read the same batch, as each runs the code around the model."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed as dist

from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.pipelining.tensors.containers import tensors_in
from smdp.torch.process_group.process_group import ProcessGroupSmdp


def check_same_batch(group: ProcessGroupSmdp, batch: Any) -> None:
    """Compares a batch with those of the other ranks of the pipeline. All of its ranks must call this.

    Args:
        group: The ranks of the pipeline.
        batch: Tensors in any structure; items that are not tensors are ignored.

    Raises:
        ValueError: The batches differ.
    """
    digest = hashlib.sha256()
    for tensor in tensors_in(batch):
        digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
        if tensor.layout is not torch.strided:
            continue
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    found = on_every_rank(digest.hexdigest, group)
    first, *others = zip(dist.get_process_group_ranks(group), found, strict=True)
    for rank, text in others:
        if text != first[1]:
            raise ValueError(
                f"[smdp] ranks {first[0]} and {rank} belong to one pipeline but have read different batches."
                " All ranks of a pipeline must read the same batch. If the data set or collator draws random"
                " numbers, seed torch, numpy and random identically on all ranks; configure samplers by"
                " replica, not by rank."
            )
