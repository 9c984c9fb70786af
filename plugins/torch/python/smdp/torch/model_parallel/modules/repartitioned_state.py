"""Merges parts of a state, one per rank of a pipeline, that were saved for another cut of the model.

The cut depends on measured times, so another run of the same job may cut the model at other places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from smdp.torch.model_parallel.job.state import state


def gathered(mine: Any) -> list[Any]:
    """Returns the values of all ranks of the pipeline, ordered by stage. All of them must call this."""
    group = state.running.mesh.group("pp")
    told: list[Any] = [None] * group.size()
    dist.all_gather_object(told, mine, group=group)
    return told


def rejoined(part: Mapping[str, Any], *, is_own: bool) -> Mapping[str, Any]:
    """Returns this rank's part, or all parts merged if the part of any rank is not its own.

    All ranks of the pipeline must call this.

    Args:
        part: Values by names of the whole model.
        is_own: Whether `part` contains everything that this rank holds.
    """
    if all(gathered(is_own)):
        return part
    whole: dict[str, Any] = {}
    for each in gathered(dict(part)):
        whole |= each
    return whole
