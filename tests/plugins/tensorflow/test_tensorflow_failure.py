"""What ranks hear of one that dies, stops or leaves out a call."""

from __future__ import annotations

import os
import signal
import time

import pytest
import tensorflow as tf
from tensorflow_spawn import run

import smdp.tensorflow as sdp


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


def check_after_shutdown() -> None:
    step = step_function(tf.Variable(tf.ones(10)))
    step(tf.constant(1.0))
    sdp.shutdown()
    with pytest.raises(tf.errors.AbortedError, match=r"was shut down|are gone|has left"):
        step(tf.constant(1.0))


def test_killed() -> None:
    run(check_killed, 3, exits={1: -signal.SIGKILL})


def test_skipped() -> None:
    run(check_skipped, 2)


def test_stopped() -> None:
    run(check_stopped, 2, env={"SMDP_TEST_TIMEOUT": "4"})


def test_after_shutdown() -> None:
    run(check_after_shutdown, 2)
