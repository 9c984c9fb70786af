"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from smdp.tensorflow.collectives import reduce_tensor
from smdp.tensorflow.groups import group_of
from smdp.tensorflow.library import check_keras_backend, is_keras_3, keras_version
from smdp.tensorflow.reduce_op import ReduceOp


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """Keras 3's BatchNormalization with mean and variance over the batches of all ranks.

    It has the same variables, so its weights can be loaded into a plain BatchNormalization. All ranks must
    run the layer the same number of times in training.

    Args:
        arguments: Arguments of keras.layers.BatchNormalization.
        group: The ranks that take part; all by default. It is not part of the layer's config.
        process_set: Another name for ``group``.
        fused: Not used.
        options: Options of keras.layers.BatchNormalization.

    Raises:
        TypeError: tf.keras is Keras 2.
        ValueError: Keras uses another backend. The layer's call raises it if a tf.distribute strategy has
            several replicas in this rank.
    """

    def __init__(
        self, *arguments: Any, group: Any = None, process_set: Any = None, fused: Any = None, **options: Any
    ) -> None:
        if not is_keras_3:
            raise TypeError(
                f"[smdp] SyncBatchNormalization is a layer of Keras 3; tf.keras is {keras_version}."
                " Use TensorFlow 2.16 or newer."
            )
        check_keras_backend("SyncBatchNormalization")
        super().__init__(*arguments, **options)
        self._group = group if group is not None else process_set

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        group = group_of(self._group)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if replicas > 1:
            raise ValueError(
                f"[smdp] rank {group.rank} of {group.size}: SyncBatchNormalization is in a strategy of"
                f" {replicas} replicas, but would normalize over only one replica per rank. Start one rank"
                " per device, without a strategy, or use keras.layers.BatchNormalization(synchronized=True),"
                " which normalizes over this rank's replicas."
            )
        # In float32, as in Keras: sums of squares lose too much precision in 16 bits.
        values = tf.cast(inputs, tf.float32) if inputs.dtype.size < 4 else inputs
        weights = tf.ones_like(values)
        if mask is not None:
            weights *= tf.cast(tf.expand_dims(mask, -1), values.dtype)
        axes = self._reduction_axes
        count = tf.reduce_sum(weights, axes)
        total = tf.reduce_sum(values * weights, axes)
        sums = reduce_tensor(tf.stack([count, total]), ReduceOp.SUM, group)
        mean = sums[1] / tf.maximum(sums[0], tf.keras.backend.epsilon())
        shape = [1 if axis in axes else size for axis, size in enumerate(values.shape)]
        centered = values - tf.reshape(mean, shape)
        # A second pass, because subtracting two large sums of squares would lose precision.
        squares = reduce_tensor(tf.reduce_sum(centered * centered * weights, axes), ReduceOp.SUM, group)
        variance = squares / tf.maximum(sums[0], tf.keras.backend.epsilon())
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


# A saved model names Keras's own layer, so that it can be loaded without smdp.
SyncBatchNormalization.__name__ = "BatchNormalization"
SyncBatchNormalization.__module__ = "keras.layers"
