"""Lists of tensors in eager code, which must be alike on all ranks."""

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

# A larger one alone takes longer than what a message costs, and is not copied.
_SMALL_BYTES = 256 << 10


@dataclass
class _Entry:
    """One of a list: names may differ between ranks, as Keras counts layers."""

    name: str
    form: str

    def __str__(self) -> str:
        return f"{self.name!r} {self.form}" if self.name else self.form


def check_same(
    call: str, what: str, values: Sequence[Any], group: Any, cure: str, root_rank: int = 0
) -> None:
    """Compare dtypes, shapes and the root, at the cost of one small message.

    Raises:
        MismatchError: On all ranks: they differ.
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
                    f" {here or 'not there'} on rank {rank} and {there or 'not there'} on rank 0. {cure}"
                )
    other = next(rank for rank, root in enumerate(roots) if root != roots[0])
    raise smdp.MismatchError(
        f"[smdp] rank {group.rank} of {group.size}: {call} got different roots: root_rank is {roots[other]}"
        f" on rank {other} and {roots[0]} on rank 0. Give all ranks the same."
    )


def check_same_length(call: str, what: str, values: Sequence[Any], group: Any, cure: str) -> Any:
    """The operation of a graph that fails on all ranks where their lists differ in length.

    What the lists hold is compared as it is sent.
    """
    count = len(values)
    last = f" (the last is {name_of(values[-1])!r})" if values else ""
    with tf.device("CPU:0"):
        # Of another dtype than what eager code compares: one rank may be there.
        most, least = tf.unstack(reduce_tensor(tf.constant([count, -count], tf.int32), ReduceOp.MAX, group))
        text = (
            f"[smdp] rank {group.rank} of {group.size}: {call} got lists of different lengths: {count}"
            f" {what}s here{last}. {cure} On another rank:"
        )
        other = tf.where(tf.equal(most, count), -least, most)
        return tf.debugging.Assert(tf.equal(most, -least), [text, other])


def join_small(values: Sequence[Any], call: Callable[[Any], Any]) -> list[Any]:
    """Each value through a call that is the same for every element; small ones of a dtype go as one."""
    results = list(values)
    together: dict[str | int, list[int]] = {}
    for index, value in enumerate(values):
        is_dense = not isinstance(value, tf.IndexedSlices)
        is_small = is_dense and _elements(value) * value.dtype.size < _SMALL_BYTES
        # Not the dtype itself, which equals its number, and so an index.
        together.setdefault(value.dtype.name if is_small else index, []).append(index)
    for indices in together.values():
        several = [values[index] for index in indices]
        if len(several) == 1:
            results[indices[0]] = call(several[0])
            continue
        with tf.device("CPU:0"):
            flat = tf.constant([-1])  # a tensor: TensorFlow takes ten times as long for a list
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
