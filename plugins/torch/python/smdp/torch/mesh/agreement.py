"""Steps that succeed on all ranks of a job or fail on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

_Result = TypeVar("_Result")


def on_every_rank(step: Callable[[], _Result], group: dist.ProcessGroup | None = None) -> list[_Result]:
    """Runs a function on every rank and exchanges the results. Collective.

    Args:
        step: The function. It must not communicate.
        group: The ranks that run it. Default: all ranks of the job.

    Returns:
        The results of all ranks.

    Raises:
        Exception: The error that `step` raised on this rank.
        RuntimeError: `step` raised only on other ranks. The message has the lowest one's rank and text.
    """
    result: _Result | None = None
    error: Exception | None = None
    try:
        result = step()
    except Exception as found:  # noqa: BLE001 - the other ranks need it first
        error = found
    told: list[tuple[_Result | None, str | None]] = [(None, None)] * dist.get_world_size(group)
    dist.all_gather_object(told, (result, None if error is None else _text(error)), group=group)
    if error is not None:
        raise error
    ranks = range(len(told)) if group is None else dist.get_process_group_ranks(group)
    for rank, (_, text) in zip(ranks, told, strict=True):
        if text is not None:
            raise RuntimeError(f"[smdp] rank {rank}: {text}")
    return [found for found, _ in told]  # type: ignore[misc]


def _text(error: Exception) -> str:
    return (
        str(error).removeprefix("[smdp] ")
        if isinstance(error, ValueError)
        else f"{type(error).__name__}: {error}"
    )
