"""Collectives with the arguments of `horovod.tensorflow.keras`: first a value, then a name."""

from __future__ import annotations

from typing import Any

import smdp.tensorflow as sdp


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Any = None,
    compression: Any = sdp.Compression.none,
    *,
    group: Any = None,
    process_set: Any = None,
) -> Any:
    """Reduces a value over all ranks, by default to its mean; arguments as in smdp.tensorflow.allreduce."""
    return sdp.allreduce(
        tensor=value,
        name=name,
        average=average,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        op=op,
        compression=compression,
        group=group,
        process_set=process_set,
    )


def allgather(value: Any, name: str | None = None, *, group: Any = None, process_set: Any = None) -> Any:
    """Returns the values of all ranks concatenated along the first dimension."""
    return sdp.allgather(value, name, group=group, process_set=process_set)


def broadcast(
    value: Any, root_rank: int, name: str | None = None, *, group: Any = None, process_set: Any = None
) -> Any:
    """Returns the root's value on every rank."""
    return sdp.broadcast(value, root_rank, name, group=group, process_set=process_set)


def reducescatter(
    value: Any,
    name: str | None = None,
    op: Any = sdp.Average,
    *,
    group: Any = None,
    process_set: Any = None,
) -> Any:
    """Returns this rank's rows of the mean, or of the reduction ``op``, over all ranks."""
    return sdp.reducescatter(value, name=name, op=op, group=group, process_set=process_set)
