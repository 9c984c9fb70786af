"""The ways to run fit, batch by batch beside one process; tapes of a part of the ranks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_spawn import run
from test_tensorflow_keras import data, mine, model, needs_keras_3, weights

import smdp
import smdp.tensorflow as sdp
from smdp.tensorflow.keras import callbacks

keras = tf.keras


def fitted(net: tf.keras.Model, x: np.ndarray, y: np.ndarray, batch: int, **options: object) -> list[float]:
    """The loss of each batch; without the options, of one process."""
    losses: list[float] = []
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    if options:
        optimizer = sdp.DistributedOptimizer(optimizer)

    class Each(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.reset_metrics()

        def on_train_batch_end(self, batch, logs=None):
            losses.append(logs["loss"])

    net.compile(optimizer, "mse", **options)
    net.fit(x, y, batch_size=batch, epochs=5, shuffle=False, verbose=0, callbacks=[Each()])
    return losses


def check_ways_of_fit() -> None:
    """Twenty batches: the mean of the ranks' losses, and the weights, are those of one process."""
    x, y = data()
    alone = model()
    expected = fitted(alone, x, y, 16)
    for options in ({"run_eagerly": True}, {"steps_per_execution": 2}, {"jit_compile": False}):
        net = model()
        losses = fitted(net, mine(x), mine(y), 16 // sdp.size(), **options)
        if "steps_per_execution" not in options:
            assert len(losses) == len(expected) == 20
            np.testing.assert_allclose(sdp.oob_allreduce(losses), expected, atol=1e-5, err_msg=str(options))
        for a, b in zip(weights(net), weights(alone), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5, err_msg=str(options))
    with pytest.raises(ValueError, match="has jit_compile=True, but XLA cannot compile communication"):
        fitted(model(), mine(x), mine(y), 16 // sdp.size(), jit_compile=True)


def check_bfloat16() -> None:
    """Computes in 16 bits; gradients and weights are float32, equal on all ranks and near one process'."""
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    x, y = data()
    alone, net = model(), model()
    before = weights(net)
    fitted(alone, x, y, 16)
    fitted(net, mine(x), mine(y), 16 // sdp.size(), jit_compile=False)
    bits = [w.tobytes() for w in weights(net)]
    assert all(other == bits for other in sdp.allgather_object(bits))
    for a, b, first in zip(weights(net), weights(alone), before, strict=True):
        assert a.dtype == np.float32 and not np.array_equal(a, first)
        np.testing.assert_allclose(a, b, atol=0.05)


def check_images() -> None:
    """Batch norm of images of all ranks, with a mean far from zero, and its gradient."""
    whole = tf.constant(np.random.default_rng(0).normal(100, 4, (8, 5, 5, 3)).astype("float32"))
    wanted = tf.constant(np.random.default_rng(1).normal(size=whole.shape).astype("float32"))
    part = slice(4 * sdp.rank(), 4 * sdp.rank() + 4)
    results = []
    for layer, rows in ((keras.layers.BatchNormalization(), slice(8)), (sdp.SyncBatchNormalization(), part)):
        with tf.GradientTape() as tape:
            tape.watch(x := whole[rows])
            y = layer(x, training=True)
            loss = tf.reduce_sum(y * wanted[rows])
        results.append((y, tape.gradient(loss, x), layer.moving_mean, layer.moving_variance))
    (y, gradient, *moments), (own, own_gradient, *own_moments) = results
    np.testing.assert_allclose(own, y[part], atol=1e-4)
    np.testing.assert_allclose(own_gradient, gradient[part], atol=1e-4)
    for a, b in zip(own_moments, moments, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


def check_tape_of_a_part() -> None:
    """Even and odd ranks train apart, in eager code and in a graph."""
    rank = sdp.rank()
    part = smdp.world().split(rank % 2)
    variable = tf.Variable(tf.ones([3]))

    def step(factor):
        with tf.GradientTape() as tape:
            loss = factor * tf.reduce_sum(variable)
        return sdp.DistributedGradientTape(tape, group=part).gradient(loss, variable)

    expected = np.mean([other + 1 for other in range(sdp.size()) if other % 2 == rank % 2])
    for run_it in (step, tf.function(step)):
        for _ in range(3):
            np.testing.assert_allclose(run_it(tf.constant(rank + 1.0)), [expected] * 3)


def check_strategy_in_a_rank() -> None:
    """Two ranks of two devices each are as one process with the global batch."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    x, y = data()
    for make in (lambda: keras.optimizers.SGD(0.1, momentum=0.9), lambda: keras.optimizers.Adam(0.01)):
        alone = model()
        alone.compile(make(), "mse")
        alone.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
        with strategy.scope():
            net, optimizer = model(seed=1 + sdp.rank()), sdp.DistributedOptimizer(make())
            net.compile(optimizer, "mse")
        sdp.broadcast_variables(net.variables, 0)
        given = [callbacks.BroadcastGlobalVariablesCallback(), callbacks.MetricAverageCallback()]
        rows, targets, batch = mine(x), mine(y), 16 // sdp.size()
        net.fit(rows, targets, batch_size=batch, epochs=3, shuffle=False, verbose=0, callbacks=given)
        for a, b in zip(weights(net), weights(alone), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
    norm = sdp.SyncBatchNormalization()
    norm.build((None, 8))
    with pytest.raises(
        ValueError, match=r"rank \d of 2: SyncBatchNormalization is in a strategy of 2 replicas"
    ):
        strategy.run(lambda: norm(x, training=True))


@needs_keras_3
def test_strategy_in_a_rank() -> None:
    run(check_strategy_in_a_rank, 2)


@needs_keras_3
def test_ways_of_fit() -> None:
    run(check_ways_of_fit, 2)


@needs_keras_3
def test_bfloat16() -> None:
    run(check_bfloat16, 2)


@needs_keras_3
def test_images() -> None:
    run(check_images, 2)


def test_tape_of_a_part() -> None:
    run(check_tape_of_a_part, 4)
