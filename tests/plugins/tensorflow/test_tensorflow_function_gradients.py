"""Gradients of a tf.function that other code differentiates, where TensorFlow puts nothing in order."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_spawn import run

import smdp.tensorflow as sdp
from smdp.tensorflow.library import is_keras_3


def several(x):
    """Calls that need nothing of each other, nor do their gradients."""
    size = sdp.size()
    return [
        sdp.allreduce(x, op=sdp.Sum),
        sdp.broadcast(x, 1),
        sdp.allreduce(2.0 * x),
        sdp.allgather(x)[1 : size + 1],
        sdp.alltoall(x),
        sdp.allreduce(3.0 * x, op=sdp.Sum),
        tf.tile(sdp.reducescatter(x), [size, 1]),
    ]


def grouped(x):
    return sdp.grouped_allreduce([float(k) * x for k in range(1, 6)], op=sdp.Sum)


def in_branches(x):
    before = sdp.allreduce(x, op=sdp.Sum)
    inside = tf.cond(
        tf.reduce_sum(x) > -1e9, lambda: tf.add_n(several(x)), lambda: sdp.allreduce(x, op=sdp.Sum)
    )
    return [before, inside, sdp.allreduce(5.0 * x, op=sdp.Sum)]


def in_loops(x):
    def body(k, y):
        return k + 1, tf.cond(k < 1, lambda: tf.add_n(several(y)), lambda: sdp.broadcast(y, 1) + y)

    looped = tf.while_loop(lambda k, _: k < 2, body, [0, x])[1]
    return [sdp.allreduce(x, op=sdp.Sum), looped, sdp.allreduce(7.0 * x, op=sdp.Sum), looped * x]


def in_a_function(x):
    return tf.function(several, autograph=False)(x) + several(2.0 * x)


def first_gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.add_n([tf.reduce_sum(part**3) * (k + 1.0) for k, part in enumerate(several(x))])
    return [tape.gradient(total, x)]


def gradient(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        parts = function(x)
        # What comes back depends on the rank and the part alone.
        loss = tf.add_n([tf.reduce_sum(p) * (k + 1.0) * (sdp.rank() + 1.0) for k, p in enumerate(parts)])
    return tape.gradient(loss, x)


def check_orders() -> None:
    size = sdp.size()
    x = tf.constant(np.arange(2.0 * size).reshape(size, 2) / 10 + sdp.rank(), tf.float32)
    for function in (several, grouped, in_branches, in_loops, in_a_function, first_gradient):
        expected = gradient(function, x)
        traced = tf.function(function, autograph=False)
        ways = {
            "the tape outside": lambda traced=traced: gradient(traced, x),
            "in another function": tf.function(lambda traced=traced: gradient(traced, x), autograph=False),
        }
        for name, way in ways.items():
            for _ in range(5):
                message = f"{function.__name__}, {name}"
                np.testing.assert_allclose(way(), expected, rtol=1e-4, atol=1e-5, err_msg=message)


def check_norms() -> None:
    """Layers beside each other: what comes back is that of one process."""
    size, rank = sdp.size(), sdp.rank()
    values, weights = np.random.default_rng(0).normal(size=(2, 8 * size, 4)).astype("float32")
    own = slice(8 * rank, 8 * rank + 8)

    def branches(kind):
        layers = [kind() for _ in range(4)]
        for layer in layers:
            layer.build((None, 4))
        return lambda x: [tf.tanh(layer(x * (k + 1.0), training=True)) for k, layer in enumerate(layers)]

    def input_gradient(function, x, w):
        x = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.add_n(function(x)) * w)
        return tape.gradient(loss, x)

    expected = input_gradient(branches(tf.keras.layers.BatchNormalization), values, weights)[own]
    traced = tf.function(branches(sdp.SyncBatchNormalization), autograph=False)
    for _ in range(5):
        got = input_gradient(traced, values[own], weights[own])
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("ops", "size"), [("native", 2), ("python", 2), pytest.param("native", 4, marks=pytest.mark.slow)]
)
def test_orders(ops: str, size: int) -> None:
    run(check_orders, size, env={"SMDP_TENSORFLOW_OPS": ops})


@pytest.mark.skipif(not is_keras_3, reason="SyncBatchNormalization needs Keras 3")
def test_norms() -> None:
    run(check_norms, 2)
