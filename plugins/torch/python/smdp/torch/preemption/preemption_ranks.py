"""Finds the ranks that smdp.preempted() asks in a torch program that may not use smdp as its backend."""

from __future__ import annotations

import torch.distributed as dist

import smdp
from smdp import preemption


def find_ranks() -> dist.ProcessGroup | None:
    """Sets up the ranks that preempted() asks.

    If torch.distributed uses a different backend, this creates a group over smdp beside it. Without
    torch.distributed it uses this process alone.

    Returns:
        The created group, which the caller must keep, or None if no group was needed.
    """
    if preemption.has_world():
        return None
    if dist.is_initialized():
        group: dist.ProcessGroup = dist.new_group(backend="smdp")
        return group
    smdp.init(rank=0, world_size=1)
    return None
