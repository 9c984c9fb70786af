"""What ranks hear of one that dies, stops or leaves out a call."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_spawn import run

import smdp
import smdp.tensorflow as sdp
from smdp.tensorflow.library import is_keras_3


def step_function(variable: tf.Variable):
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * x)
        return sdp.DistributedGradientTape(tape).gradient(loss, [variable])[0]

    return step


def check_killed() -> None:
    variable = tf.Variable(tf.ones(300_000))
    step = step_function(variable)
    step(tf.constant(1.0))
    sdp.barrier()
    if sdp.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    own = rf"\[smdp\] rank {sdp.rank()} of 3 .*rank 1 \(host"
    with pytest.raises(tf.errors.AbortedError, match=own):
        step(tf.constant(1.0))
    assert time.monotonic() - start < 5
    with pytest.raises(tf.errors.AbortedError, match=own):  # the same from now on
        step(tf.constant(1.0))


def check_skipped() -> None:
    """One rank leaves out a collective and goes on to the next: different calls meet."""
    x = tf.ones(4)
    start = time.monotonic()
    both = tf.function(lambda: sdp.broadcast(sdp.allreduce(x), 0))
    one = tf.function(lambda: sdp.broadcast(x, 0))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"all_reduce.*broadcast|broadcast.*all_reduce"):
        (both if sdp.rank() == 0 else one)()
    assert time.monotonic() - start < 5


def check_stopped() -> None:
    """A rank that does not come: the deadline ends the wait and names it."""
    step = step_function(tf.Variable(tf.ones(10)))
    step(tf.constant(1.0))
    if sdp.rank() == 1:
        time.sleep(8)
        return
    start = time.monotonic()
    with pytest.raises(tf.errors.DeadlineExceededError, match=r"rank 1"):
        step(tf.constant(1.0))
    assert time.monotonic() - start < 7


_LACKS = r"\(the gradient of 'second:0' was float32\[2\] and is no gradient of a variable \(2,\)\)"


def steps_of_two_variables(is_graph: bool):
    """A step that leaves the second one out if it is told to."""
    first, second = (tf.Variable([1.0, 2.0], name=name) for name in ("first", "second"))

    def gradients(is_whole):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(first * first)
            if is_whole:
                loss += tf.reduce_sum(second * second)
        return sdp.DistributedGradientTape(tape).gradient(loss, [first, second])

    return tf.function(gradients, autograph=False) if is_graph else gradients


def check_missing(is_graph: bool) -> None:
    """A gradient that is there on one rank only, from the second step on."""
    step = steps_of_two_variables(is_graph)
    step(True)
    start = time.monotonic()
    kind = smdp.MismatchError if sdp.rank() == 1 else tf.errors.InvalidArgumentError
    with pytest.raises(
        kind, match=f"rank 1 .* has not called: it is creating group .* {_LACKS}, .* Neither can end"
    ):
        step(sdp.rank() == 0)
    assert time.monotonic() - start < 10


def check_missing_in_eager_code() -> None:
    check_missing(False)


def check_missing_in_a_graph() -> None:
    check_missing(True)


def check_after_shutdown() -> None:
    step = step_function(tf.Variable(tf.ones(10)))
    step(tf.constant(1.0))
    sdp.shutdown()
    with pytest.raises(tf.errors.AbortedError, match=r"was shut down|are gone|has left"):
        step(tf.constant(1.0))


def check_another_world() -> None:
    """What was traced in the old one raises, also where Python makes the ops; an optimizer goes on."""
    variable = tf.Variable(tf.ones(10))
    step, sums = step_function(variable), tf.function(lambda: sdp.allreduce(tf.ones(3), op=sdp.Sum))
    optimizer = sdp.DistributedOptimizer(tf.keras.optimizers.SGD(1.0)) if is_keras_3 else None

    def apply() -> None:
        if optimizer is not None:
            optimizer.apply([tf.fill([10], 1.0 + sdp.rank())], [variable])

    def use() -> None:
        step(tf.constant(1.0))
        sums()
        apply()

    use()
    sdp.shutdown()
    for _ in range(2):  # before init() and after it
        for call in (lambda: step(tf.constant(1.0)), sums):
            with pytest.raises(tf.errors.OpError, match=r"\[smdp\] .*(was shut down|are gone|is gone)"):
                call()
        sdp.init(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    before = variable.numpy()
    apply()
    assert optimizer is None or np.array_equal(before - variable.numpy(), np.full(10, 1.5, "float32"))
    mean, total = step_function(variable)(tf.constant(1.0 + sdp.rank())), tf.function(sums.python_function)()
    assert mean.numpy().tolist() == [1.5] * 10 and total.numpy().tolist() == [2.0] * 3


def test_killed() -> None:
    run(check_killed, 3, exits={1: -signal.SIGKILL})


def test_skipped() -> None:
    run(check_skipped, 2)


def test_stopped() -> None:
    run(check_stopped, 2, env={"SMDP_TEST_TIMEOUT": "4"})


@pytest.mark.parametrize("check", [check_missing_in_eager_code, check_missing_in_a_graph])
def test_missing(check) -> None:
    run(check, 2)


def test_after_shutdown() -> None:
    run(check_after_shutdown, 2)


@pytest.mark.parametrize("ops", ["native", "python"])
def test_another_world(ops: str) -> None:
    run(check_another_world, 2, env={"SMDP_TENSORFLOW_OPS": ops})
