"""Embeddings under optimizers that are not linear in a row: as if one process had the dense mean."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_spawn import run

import smdp.tensorflow as sdp
from smdp.tensorflow.library import is_keras_3

keras = tf.keras


def trained(rows: int, make, *, by_tape: bool) -> tuple[np.ndarray, np.ndarray]:
    """The table after three steps: ours, and where plain Keras applies the dense mean."""
    start = tf.random.stateless_normal((rows, 2), seed=(1, 2))
    ours, plain = tf.Variable(start, name="ours"), tf.Variable(start, name="plain")
    optimizer, reference = make(), make()
    if not by_tape:
        optimizer = sdp.DistributedOptimizer(optimizer)
    for step in range(3):
        # Row 1 on all ranks, and twice on each; others on one.
        ids = tf.constant([1, 1, 2 + (step + sdp.rank()) % 3])
        for variable in (ours, plain):
            with tf.GradientTape() as tape:
                weights = tf.cast(tf.range(3) + 1 + sdp.rank(), tf.float32)[:, None]
                loss = tf.reduce_sum(weights * tf.gather(variable, ids) ** 2)
            if variable is ours and by_tape:
                tape = sdp.DistributedGradientTape(tape)
            gradient = tape.gradient(loss, variable)
            assert isinstance(gradient, tf.IndexedSlices)
            if variable is plain:
                gradient = sdp.allreduce(tf.convert_to_tensor(gradient))
            elif by_tape:
                assert len(set(gradient.indices.numpy())) == len(gradient.indices)
            (optimizer if variable is ours else reference).apply([gradient], [variable])
    return ours.numpy(), plain.numpy()


def check_embeddings() -> None:
    optimizers = keras.optimizers
    for make in (
        lambda: optimizers.Adagrad(0.1),
        lambda: optimizers.RMSprop(0.1),
        lambda: optimizers.SGD(0.1, clipnorm=0.5),
        lambda: optimizers.SGD(0.1, global_clipnorm=0.5),
    ):
        # The rows of all ranks are fewer than 50, and more than 5.
        for rows in (50, 5):
            for by_tape in (True, False):
                ours, plain = trained(rows, make, by_tape=by_tape)
                np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-6)


def check_means_of_slices() -> None:
    """Means as of dense tensors: where the sum exceeds float16, and of integers, which stay such."""
    for shape in (None, tf.constant([50, 1]), tf.constant([2, 1])):
        for dtype, rank_0, rank_1, expected in (
            (tf.float16, 60000, 59936, 59968),
            (tf.float32, 1, 2, 1.5),
            (tf.int32, -3, -4, -3),
            (tf.int64, 2**60 + 1, 2**60 + 3, 2**60 + 2),
        ):
            mine = tf.constant([[rank_0 if sdp.rank() == 0 else rank_1]], dtype)
            got = sdp.allreduce(tf.IndexedSlices(mine, tf.constant([1]), shape))
            assert got.values.dtype == dtype
            row = got.values[got.indices.numpy().tolist().index(1)]
            assert row.numpy().tolist() == [expected]


def test_means_of_slices() -> None:
    run(check_means_of_slices, 2)


@pytest.mark.skipif(not is_keras_3, reason="needs Keras 3")
def test_embeddings() -> None:
    run(check_embeddings, 2)
