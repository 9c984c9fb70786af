"""Compares frozen parameters and buffers between ranks before rank 0 broadcasts them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from smdp._errors import MismatchError
from smdp.torch.process_group.process_group import ProcessGroupSmdp


def check_same_state(group: ProcessGroupSmdp, state: Sequence[tuple[str, Tensor]]) -> None:
    """Checks that names, dtypes and shapes agree on all ranks. Collective, and cheap if they do.

    Raises:
        smdp.MismatchError: A rank differs from rank 0. All ranks raise it, and the message names the first
            difference.
    """
    lines = [f"'{name}' {str(one.dtype).removeprefix('torch.')}{list(one.shape)}" for name, one in state]
    digest = hashlib.sha256("\n".join(lines).encode()).digest()[:8]
    mine = torch.tensor([int.from_bytes(digest, "big", signed=True)])
    digests = torch.empty(group.size(), dtype=torch.int64)
    dist.all_gather_single(digests, mine, group=group)
    if bool((digests == digests[0]).all()):
        return
    every: list[list[str]] = [[] for _ in range(group.size())]
    dist.all_gather_object(every, lines, group=group)
    rank = next(rank for rank, theirs in enumerate(every) if theirs != every[0])
    place = next(
        (
            place
            for place, (one, other) in enumerate(zip(every[0], every[rank], strict=False))
            if one != other
        ),
        min(len(every[0]), len(every[rank])),
    )
    first, other = (
        theirs[place] if place < len(theirs) else "nothing more" for theirs in (every[0], every[rank])
    )
    raise MismatchError(
        f"[smdp] rank {group.rank()} of {group.size()}: the frozen parameters and buffers of rank 0 cannot be"
        f" broadcast: rank 0 has {first} where rank {rank} has {other}. All ranks must build the same model"
        " and pass the same broadcast_buffers. To keep each rank's own values, pass init_sync=False."
    )
