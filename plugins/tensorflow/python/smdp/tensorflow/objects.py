"""Python objects between ranks, pickled."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import tensorflow as tf

from smdp._pickling import dumps
from smdp._shown import shown
from smdp.tensorflow.arguments import root_of
from smdp.tensorflow.collectives import allgather, broadcast
from smdp.tensorflow.groups import group_of


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: Any = None,
    *,
    group: Any = None,
) -> Any:
    """The root's object, on every rank. It is pickled: ranks must trust each other, as they do anyway.

    Raises:
        TypeError: root_rank is no integer, or the object cannot be pickled.
        ValueError: There is no such rank.
        RuntimeError: In a function that is being traced: only tensors can be its results.
    """
    members = _only_eager("broadcast_object", group_of(group, process_set))
    root_rank = root_of("broadcast_object", root_rank, members)
    data = _pickled("broadcast_object", obj, members) if members.rank == root_rank else np.zeros(0, np.uint8)
    length = int(broadcast(tf.constant([len(data)], tf.int64), root_rank, group=members)[0])
    if members.rank != root_rank:
        data = np.zeros(length, np.uint8)
    received = broadcast(tf.constant(data), root_rank, group=members).numpy()
    return obj if members.rank == root_rank else pickle.loads(received.tobytes())


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: Any = None, *, group: Any = None
) -> list[Any]:
    """Every rank's object, by rank, on every rank.

    Raises:
        TypeError: The object cannot be pickled.
        RuntimeError: In a function that is being traced: only tensors can be its results.
    """
    members = _only_eager("allgather_object", group_of(group, process_set))
    data = _pickled("allgather_object", obj, members)
    lengths = allgather(tf.constant([len(data)], tf.int64), group=members).numpy()
    joined = allgather(tf.constant(data), group=members).numpy()
    ends = np.cumsum(lengths)
    return [pickle.loads(joined[end - n : end].tobytes()) for n, end in zip(lengths, ends, strict=True)]


def _only_eager(what: str, group: Any) -> Any:
    if tf.executing_eagerly():
        return group
    raise RuntimeError(
        f"[smdp] rank {group.rank}: {what} was called in a tf.function (or a graph), which works on"
        " tensors, not on objects. Call it outside, before the function."
    )


def _pickled(call: str, obj: Any, group: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    try:
        return np.frombuffer(dumps(obj), np.uint8)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise TypeError(
            f"[smdp] rank {group.rank} of {group.size}: {call} got {shown(obj)}, which cannot be pickled:"
            f" {error}. Give it plain values; the other ranks wait for this one."
        ) from error
