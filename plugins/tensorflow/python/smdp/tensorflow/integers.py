"""Reductions of unsigned integers, which the core does not reduce, and means of narrow integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from smdp.tensorflow.reduce_op import ReduceOp

_WIDER = {tf.uint16: tf.int32, tf.uint32: tf.int64}
_WIDER_FOR_MEAN = {tf.int8: tf.int32, tf.uint8: tf.int32, tf.int16: tf.int32, **_WIDER}


def widened(tensor: Any, op: ReduceOp) -> Any:
    """Returns the tensor in a wider dtype if its mean fits the dtype but the sum may overflow."""
    wide = _WIDER_FOR_MEAN.get(tensor.dtype) if op is ReduceOp.AVERAGE else None
    return tensor if wide is None else tf.cast(tensor, wide)


def as_signed(tensor: Any, op: ReduceOp, size: int) -> tuple[Any, ReduceOp, Callable[[Any], Any]]:
    """Returns a tensor to reduce, the operation, and a function that converts the result back.

    Dtypes that the core reduces stay as they are. Sums and products wrap around, as on a single process.
    """
    dtype = tensor.dtype
    wide = (_WIDER_FOR_MEAN if op is ReduceOp.AVERAGE else _WIDER).get(dtype)
    if wide is not None:
        return tf.cast(tensor, wide), op, lambda result: tf.cast(result, dtype)
    if dtype != tf.uint64:
        return tensor, op, lambda result: result
    bits = tf.bitcast(tensor, tf.int64)
    if op in (ReduceOp.MIN, ReduceOp.MAX):
        flip = tf.constant(tf.int64.min, tf.int64)  # keeps the order
        flipped = tf.bitwise.bitwise_xor(bits, flip)
        return flipped, op, lambda result: tf.bitcast(tf.bitwise.bitwise_xor(result, flip), dtype)
    if op is ReduceOp.AVERAGE:
        return bits, ReduceOp.SUM, lambda result: tf.bitcast(result, dtype) // tf.cast(size, dtype)
    return bits, op, lambda result: tf.bitcast(result, dtype)
