"""Whether the ranks of a pipeline have read the same batch: each runs the code around its stages itself."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed as dist

from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.pipelining.tensors.containers import tensors_in
from smdp.torch.process_group.process_group import ProcessGroupSmdp


def check_same_batch(group: ProcessGroupSmdp, batch: Any) -> None:
    """Compare a batch with those that the other ranks of the pipeline have read; all of them call it.

    Args:
        group: The ranks of the pipeline.
        batch: Tensors, in any structure; what is no tensor does not count.

    Raises:
        ValueError: They differ.
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
                f"[smdp] ranks {first[0]} and {rank} hold stages of one pipeline and have read different"
                " batches. Data sets and collators that draw random numbers must draw the same on both: seed"
                " them alike on all ranks, by torch, numpy or random; samplers count replicas, not ranks."
            )
