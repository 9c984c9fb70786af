"""Reduction of IndexedSlices, the gradients of embeddings."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from smdp.tensorflow.collectives import allgather
from smdp.tensorflow.reduce_op import ReduceOp


def merge_duplicates(slices: Any) -> Any:
    """The same slices with every index once: what a batch looked up twice travels once."""
    indices, places = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, places, tf.shape(indices)[0])
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def reduce_slices(slices: Any, op: ReduceOp, group: Any) -> Any:
    """All ranks' rows and indices, one after the other; whoever applies them adds equal ones.

    Raises:
        ValueError: The operation is neither SUM nor AVERAGE.
    """
    if op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        raise ValueError(
            f"[smdp] {op.name} of IndexedSlices is not defined: rows that a rank has not are zero."
            " Use sparse_as_dense=True."
        )
    merged = merge_duplicates(slices)
    values = allgather(merged.values, group=group)
    indices = allgather(merged.indices, group=group)
    if op is ReduceOp.AVERAGE:
        values = values / tf.cast(group.size, values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)
