"""Lists of tensors in eager code, which must match on all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

import smdp
from smdp.tensorflow.collectives import reduce_tensor
from smdp.tensorflow.groups import name_of
from smdp.tensorflow.objects import allgather_object
from smdp.tensorflow.reduce_op import ReduceOp

# A larger tensor takes longer than the fixed cost of a message, so it is sent alone and not copied.
_SMALL_BYTES = 256 << 10


@dataclass
class _Entry:
    """An entry of a list. Only the form is compared: names may differ, because Keras numbers layers."""

    name: str
    form: str

    def __str__(self) -> str:
        return f"{self.name!r} {self.form}" if self.name else self.form


def check_same(
    call: str, what: str, values: Sequence[Any], group: Any, cure: str, root_rank: int = 0
) -> None:
    """Checks that dtypes, shapes and the root are the same on all ranks, at the cost of one small message.

    Raises:
        MismatchError: They differ. It is raised on all ranks.
    """
    forms = [f"{tf.as_dtype(one.dtype).name}{_shape_of(one)}" for one in values]
    number = int.from_bytes(hashlib.sha256(repr((root_rank, forms)).encode()).digest()[:7], "big")
    with tf.device("CPU:0"):
        both = tf.constant([number, -number], tf.int64)
    largest, smallest = reduce_tensor(both, ReduceOp.MAX, group).numpy()
    if largest == -smallest:
        return
    own = [_Entry(name_of(one), form) for one, form in zip(values, forms, strict=True)]
    roots, lists = zip(*allgather_object((root_rank, own), group=group), strict=True)
    for rank, theirs in enumerate(lists):
        for index in range(max(len(theirs), len(lists[0]))):
            here, there = (one[index] if index < len(one) else None for one in (theirs, lists[0]))
            if (here and here.form) != (there and there.form):
                raise smdp.MismatchError(
                    f"[smdp] rank {group.rank} of {group.size}: {call} got different lists: {what} {index} is"
                    f" {here or 'missing'} on rank {rank} and {there or 'missing'} on rank 0. {cure}"
                )
    other = next(rank for rank, root in enumerate(roots) if root != roots[0])
    raise smdp.MismatchError(
        f"[smdp] rank {group.rank} of {group.size}: {call} got different roots: root_rank is {roots[other]}"
        f" on rank {other} and {roots[0]} on rank 0. Pass the same on all ranks."
    )


def check_same_length(call: str, what: str, values: Sequence[Any], group: Any, cure: str) -> Any:
    """Returns a graph operation that fails on all ranks if their lists differ in length.

    The entries are compared when they are sent.
    """
    count = len(values)
    last = f" (the last is {name_of(values[-1])!r})" if values else ""
    with tf.device("CPU:0"):
        # Another dtype than in check_same(), so that a rank in eager code causes a mismatch.
        most, least = tf.unstack(reduce_tensor(tf.constant([count, -count], tf.int32), ReduceOp.MAX, group))
        text = (
            f"[smdp] rank {group.rank} of {group.size}: {call} got lists of different lengths: {count}"
            f" {what}s here{last}. {cure} On another rank:"
        )
        other = tf.where(tf.equal(most, count), -least, most)
        return tf.debugging.Assert(tf.equal(most, -least), [text, other])


def join_small(values: Sequence[Any], call: Callable[[Any], Any]) -> list[Any]:
    """Returns the results of an elementwise call on each value. Small values of a dtype share one call."""
    results = list(values)
    together: dict[str | int, list[int]] = {}
    for index, value in enumerate(values):
        is_dense = not isinstance(value, tf.IndexedSlices)
        is_small = is_dense and _elements(value) * value.dtype.size < _SMALL_BYTES
        # The name, because a dtype equals its number, which may also be an index.
        together.setdefault(value.dtype.name if is_small else index, []).append(index)
    for indices in together.values():
        several = [values[index] for index in indices]
        if len(several) == 1:
            results[indices[0]] = call(several[0])
            continue
        with tf.device("CPU:0"):
            flat = tf.constant([-1])  # a tensor, because a list takes TensorFlow ten times as long
            whole = call(tf.concat([tf.reshape(value, flat) for value in several], 0))
            parts = tf.split(whole, [_elements(value) for value in several])
            for index, part in zip(indices, parts, strict=True):
                results[index] = tf.reshape(part, tf.shape(values[index]))
    return results


def _elements(value: Any) -> int:
    return int(value.shape.num_elements())


def _shape_of(value: Any) -> str:
    shape = tf.TensorShape(value.shape)
    return "[?]" if shape.rank is None else str(shape.as_list())
