"""Python objects between ranks, pickled."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from smdp._pickling import dumps
from smdp._shown import shown
from smdp.tensorflow.arguments import root_of
from smdp.tensorflow.collectives import allgather, broadcast
from smdp.tensorflow.groups import group_of

Array = npt.NDArray[Any]


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

    While a graph of TensorFlow 1 is built it works at once, without a session.

    Raises:
        TypeError: root_rank is not an integer, or the object cannot be pickled.
        ValueError: There is no such rank.
        RuntimeError: In a function that is being traced: only tensors can be its results.
    """
    members = _outside_functions("broadcast_object", group_of(group, process_set))
    root_rank = root_of("broadcast_object", root_rank, members)
    data = _pickled("broadcast_object", obj, members) if members.rank == root_rank else np.zeros(0, np.uint8)
    length = int(_broadcast(np.array([len(data)]), root_rank, members)[0])
    if members.rank != root_rank:
        data = np.zeros(length, np.uint8)
    received = _broadcast(data, root_rank, members)
    return obj if members.rank == root_rank else pickle.loads(received.tobytes())


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: Any = None, *, group: Any = None
) -> list[Any]:
    """Every rank's object, by rank, on every rank.

    Raises:
        TypeError: The object cannot be pickled.
        RuntimeError: In a function that is being traced: only tensors can be its results.
    """
    members = _outside_functions("allgather_object", group_of(group, process_set))
    data = _pickled("allgather_object", obj, members)
    lengths = _allgather(np.array([len(data)]), [1] * members.size, members)
    joined = _allgather(data, lengths, members)
    ends = np.cumsum(lengths)
    return [pickle.loads(joined[end - n : end].tobytes()) for n, end in zip(lengths, ends, strict=True)]


def _broadcast(array: Array, root_rank: int, group: Any) -> Any:
    if tf.executing_eagerly():  # behind what eager code has called before
        return broadcast(tf.constant(array), root_rank, group=group).numpy()
    return group.broadcast(array.copy(), root_rank)


def _allgather(array: Array, rows: Sequence[int], group: Any) -> Any:
    if tf.executing_eagerly():
        return allgather(tf.constant(array), group=group).numpy()
    joined = np.empty(sum(rows), array.dtype)
    group.all_gather(array, out=np.split(joined, np.cumsum(rows)[:-1]))
    return joined


def _outside_functions(what: str, group: Any) -> Any:
    if tf.executing_eagerly() or not tf.compat.v1.get_default_graph().building_function:
        return group
    raise RuntimeError(
        f"[smdp] rank {group.rank}: {what} was called in a tf.function, which works on tensors, not on"
        " objects. Call it outside, before the function."
    )


def _pickled(call: str, obj: Any, group: Any) -> Array:
    try:
        return np.frombuffer(dumps(obj), np.uint8)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise TypeError(
            f"[smdp] rank {group.rank} of {group.size}: {call} got {shown(obj)}, which cannot be pickled:"
            f" {error}. Give it plain values; the other ranks wait for this one."
        ) from error
