"""Reductions of IndexedSlices, which are the gradients of embeddings."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from smdp.tensorflow.collectives import allgather, reduce_tensor
from smdp.tensorflow.reduce_op import ReduceOp


def merge_duplicates(slices: Any) -> Any:
    """Returns the slices with every index once, so that a row that a batch used twice is sent once."""
    indices, places = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, places, tf.shape(indices)[0])
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def reduce_slices(slices: Any, op: ReduceOp, group: Any, name: str | None = None) -> Any:
    """Returns the sum or mean over all ranks as IndexedSlices with every index once.

    Indices are unique because Keras's use of a row is not always linear: with duplicates, squares and norms
    would be those of the parts. The rows of all ranks are gathered. If these are more rows than the variable
    has, the whole variable is reduced instead, which sends less.

    Raises:
        ValueError: The operation is neither SUM nor AVERAGE.
    """
    if op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        raise ValueError(
            f"[smdp] {op.name} of IndexedSlices is not defined, because rows that a rank does not have"
            " count as zero. Use sparse_as_dense=True."
        )
    values, is_mean = slices.values, op is ReduceOp.AVERAGE
    if is_mean and not values.dtype.is_integer:
        values = values / tf.cast(group.size, values.dtype)  # before the sum, which may overflow in float16
    merged = merge_duplicates(tf.IndexedSlices(values, slices.indices, slices.dense_shape))
    if slices.dense_shape is None:
        values, indices = _gathered(merged, group, name)
    else:
        rows = tf.cast(merged.dense_shape[0], tf.int64)
        own = tf.size(merged.indices, out_type=tf.int64)
        values, indices = tf.cond(
            reduce_tensor(own, ReduceOp.SUM, group, _part(name, "rows")) > rows,
            lambda: _dense(merged, rows, group, name),
            lambda: _gathered(merged, group, name),
        )
    if is_mean and values.dtype.is_integer:
        wide = tf.uint64 if values.dtype.is_unsigned else tf.int64
        cut = tf.truncatediv(tf.cast(values, wide), tf.cast(group.size, wide))  # as for dense tensors
        values = tf.cast(cut, values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _gathered(slices: Any, group: Any, name: str | None) -> tuple[Any, Any]:
    values = allgather(slices.values, _part(name, "values"), group=group)
    # In a graph of TensorFlow 1, only this orders calls into Python.
    with tf.control_dependencies([values]):
        indices = allgather(slices.indices, _part(name, "indices"), group=group)
    merged = merge_duplicates(tf.IndexedSlices(values, indices))
    return merged.values, merged.indices


def _dense(slices: Any, rows: Any, group: Any, name: str | None) -> tuple[Any, Any]:
    whole = tf.math.unsorted_segment_sum(slices.values, slices.indices, rows)
    return reduce_tensor(whole, ReduceOp.SUM, group, name), tf.range(rows, dtype=slices.indices.dtype)


def _part(name: str | None, part: str) -> str | None:
    return f"{name}/{part}" if name else None
