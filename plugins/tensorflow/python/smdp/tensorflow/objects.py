"""Collectives of Python objects, which are sent pickled."""

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
    """Returns the root's object on every rank.

    The object is pickled, so the ranks must trust each other. While a TensorFlow 1 graph is being built, the
    call runs at once and needs no session.

    Raises:
        TypeError: root_rank is not an integer, or the object cannot be pickled.
        ValueError: The group does not have the rank root_rank.
        RuntimeError: It was called in a function that is being traced, which can return only tensors.
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
    """Returns the objects of all ranks, in rank order, on every rank.

    Raises:
        TypeError: The object cannot be pickled.
        RuntimeError: It was called in a function that is being traced, which can return only tensors.
    """
    members = _outside_functions("allgather_object", group_of(group, process_set))
    data = _pickled("allgather_object", obj, members)
    lengths = _allgather(np.array([len(data)]), [1] * members.size, members)
    joined = _allgather(data, lengths, members)
    ends = np.cumsum(lengths)
    return [pickle.loads(joined[end - n : end].tobytes()) for n, end in zip(lengths, ends, strict=True)]


def _broadcast(array: Array, root_rank: int, group: Any) -> Any:
    if tf.executing_eagerly():  # ordered after the earlier calls of eager code
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
        " objects. Call it outside the function, before it runs."
    )


def _pickled(call: str, obj: Any, group: Any) -> Array:
    try:
        return np.frombuffer(dumps(obj), np.uint8)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise TypeError(
            f"[smdp] rank {group.rank} of {group.size}: {call} got {shown(obj)}, which cannot be pickled:"
            f" {error}. Pass plain values; the other ranks are waiting for this one."
        ) from error
