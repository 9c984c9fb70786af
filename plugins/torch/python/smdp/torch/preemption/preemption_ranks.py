"""Whom smdp.preempted() asks in a program of torch's that may have no group over smdp."""

from __future__ import annotations

import torch.distributed as dist

import smdp
from smdp import preemption


def find_ranks() -> dist.ProcessGroup | None:
    """Give preempted() ranks to ask: a group beside torch's of another backend, or this process alone.

    Returns:
        The group that was made for it, which must be kept; None if none was needed.
    """
    if preemption.has_world():
        return None
    if dist.is_initialized():
        group: dist.ProcessGroup = dist.new_group(backend="smdp")
        return group
    smdp.init(rank=0, world_size=1)
    return None
