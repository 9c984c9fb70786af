"""Tensors and variables on a GPU, which both ranks share: TensorFlow copies what travels."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_spawn import run

import smdp.tensorflow as sdp

DEVICE = "/GPU:0"


def check_gpu() -> None:
    rank = sdp.rank()
    with tf.device(DEVICE):
        x = tf.ones([1000]) * (rank + 1)
        weights = [tf.Variable(tf.ones(shape)) for shape in ([20, 700], [700, 3], [3])]
    assert all(one.device.endswith(f"device:{DEVICE[1:]}") for one in [x, *weights]), x.device
    for call in (sdp.allreduce, tf.function(sdp.allreduce)):
        np.testing.assert_allclose(call(x), np.full(1000, 1.5))
    np.testing.assert_allclose(sdp.allgather(x)[::1000], [1, 2])
    np.testing.assert_allclose(sdp.broadcast(x, 1), np.full(1000, 2))

    def step():
        with tf.device(DEVICE):
            with tf.GradientTape() as tape:
                hidden = tf.ones([4, 20]) @ weights[0] @ weights[1] + weights[2]
                loss = (rank + 1) * tf.reduce_sum(hidden)
            gradients = sdp.DistributedGradientTape(tape).gradient(loss, weights)
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.assign_sub(gradient * 1e-3)
            return gradients

    graph = tf.function(step)
    first = [np.full((20, 700), 1.5 * 4 * 3), np.full((700, 3), 1.5 * 4 * 20), np.full(3, 1.5 * 4)]
    for got, expected in zip(step(), first, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)
    for _ in range(5):
        graph()
    bits = [one.numpy().tobytes() for one in weights]
    assert sdp.allgather_object(bits) == [bits, bits]


@pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="no GPU that TensorFlow sees is here")
def test_gpu() -> None:
    run(check_gpu, 2, env={"TF_FORCE_GPU_ALLOW_GROWTH": "true"})
