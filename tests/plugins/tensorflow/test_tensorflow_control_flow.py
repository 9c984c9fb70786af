"""Gradients through tf.while_loop and tf.cond, the tape outside, are those of the same code in Python."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_spawn import run

import smdp.tensorflow as sdp
from smdp.tensorflow.library import is_keras_3


def in_loop(function, x):
    for _ in tf.range(2):
        x = function(x)
    return x


def in_cond(function, x):
    if tf.reduce_sum(x) > -1e9:  # noqa: SIM108 AutoGraph does not translate the other
        x = function(function(x))
    else:
        x = 2.0 * x
    return x


def gradient(way, function, x):
    weights = tf.reshape(tf.range(1.0, 1 + tf.size(x, tf.float32)), x.shape) + sdp.rank()
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(way(function, x) * weights)
    return tape.gradient(loss, x)


def check_collectives() -> None:
    size = sdp.size()
    x = tf.constant(np.arange(2.0 * size).reshape(size, 2) + sdp.rank(), tf.float32)
    cases = {
        "allreduce": lambda y: sdp.allreduce(y, op=sdp.ReduceOp.SUM),
        "mean": sdp.allreduce,
        "broadcast": lambda y: sdp.broadcast(y, 1),
        "allgather": lambda y: sdp.allgather(y)[1 : size + 1] * y,
        "alltoall": lambda y: sdp.alltoall(y) * y,
        "reducescatter": lambda y: tf.tile(sdp.reducescatter(y), [size, 1]) * y,
    }
    if is_keras_3:
        norm = sdp.SyncBatchNormalization()
        norm.build((None, 2))
        cases["batch norm"] = lambda y: norm(y, training=True) * y
    for name, function in cases.items():
        expected = gradient(lambda f, y: f(f(y)), function, x)
        for way in (in_loop, in_cond):
            way = tf.autograph.to_graph(way)
            got = tf.function(lambda x, way=way, function=function: gradient(way, function, x))(x)
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def check_gradients_of_gradients() -> None:
    scale = tf.Variable(2.0)

    def add_gradient(y):
        with tf.GradientTape() as tape:
            loss = (sdp.rank() + 1) * scale**3
        return y + sdp.DistributedGradientTape(tape).gradient(loss, scale)

    for way in (in_loop, in_cond):
        way = tf.autograph.to_graph(way)

        @tf.function
        def second(way=way):
            with tf.GradientTape() as tape:
                total = way(add_gradient, tf.constant(0.0))
            return tape.gradient(total, scale)

        np.testing.assert_allclose(second(), 2 * 6 * 2 * (sdp.rank() + 1), rtol=1e-6)


def check_whole_functions() -> None:
    """A call without a result may be all that a function does, and the last thing in a branch of it."""
    rank, variable = sdp.rank(), tf.Variable([1.0 + sdp.rank()])
    sdp.barrier()
    if rank == 1:
        time.sleep(1.0)
    start = time.monotonic()
    assert tf.function(sdp.barrier)() is None
    waited = time.monotonic() - start
    assert rank == 1 or waited > 0.5, waited
    assert tf.function(sdp.broadcast_variables)([variable], 1) is None
    assert variable.numpy() == [2.0]

    @tf.function
    def branches(is_used):
        if is_used:
            variable.assign([3.0 + rank])
            sdp.broadcast_variables([variable], 1)
        else:
            sdp.barrier()

    branches(tf.constant(False))
    assert variable.numpy() == [2.0]
    branches(tf.constant(True))
    assert variable.numpy() == [4.0]


@pytest.mark.parametrize("ops", ["native", "python"])
def test_whole_functions(ops: str) -> None:
    run(check_whole_functions, 2, env={"SMDP_TENSORFLOW_OPS": ops})


@pytest.mark.parametrize("ops", ["native", "python"])
def test_collectives(ops: str) -> None:
    run(check_collectives, 2, env={"SMDP_TENSORFLOW_OPS": ops})


@pytest.mark.parametrize("ops", ["native", "python"])
def test_gradients_of_gradients(ops: str) -> None:
    run(check_gradients_of_gradients, 2, env={"SMDP_TENSORFLOW_OPS": ops})
