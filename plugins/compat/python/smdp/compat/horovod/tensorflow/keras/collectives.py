"""What `horovod.keras` calls by other arguments than `horovod.tensorflow`."""

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
) -> Any:
    """Reduce a value, by default to its mean."""
    return sdp.allreduce(
        tensor=value,
        name=name,
        average=average,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        op=op,
        compression=compression,
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Join all ranks' values along the first dimension."""
    return sdp.allgather(value, name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Give the root's value."""
    return sdp.broadcast(value, root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: Any = sdp.Average) -> Any:
    """Give this rank's rows of the mean, or of the sum."""
    return sdp.reducescatter(value, name=name, op=op)
