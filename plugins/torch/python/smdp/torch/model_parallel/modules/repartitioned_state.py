"""Parts of a state, one per rank of a pipeline, that were saved when the model was cut at other places.

Where it is cut follows from measured times, so another run of the same job may cut it elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from smdp.torch.model_parallel.job.state import state


def gathered(mine: Any) -> list[Any]:
    """Give what all ranks of the pipeline have given, by stage; all of them call it."""
    group = state.running.mesh.group("pp")
    told: list[Any] = [None] * group.size()
    dist.all_gather_object(told, mine, group=group)
    return told


def rejoined(part: Mapping[str, Any], *, is_own: bool) -> Mapping[str, Any]:
    """Give this rank's part or, unless it is every rank's own, all parts together.

    All ranks of the pipeline call it.

    Args:
        part: Values by names of the whole model.
        is_own: It holds what this rank keeps.
    """
    if all(gathered(is_own)):
        return part
    whole: dict[str, Any] = {}
    for each in gathered(dict(part)):
        whole |= each
    return whole
