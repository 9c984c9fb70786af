"""How long reducers live: as the variables they are for; and what a step that breaks off leaves behind."""

from __future__ import annotations

import gc
import os
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_spawn import run

import smdp
import smdp.tensorflow as sdp
from smdp.tensorflow import gradient_steps


def check_replaced_head() -> None:
    """Beside a body that stays; one rank keeps all heads, so that only the other's addresses come again."""
    body, kept, addresses = tf.Variable(tf.ones([3])), [], set()
    for count in range(1, 101):
        head = tf.Variable(tf.fill([2], float(count)))
        addresses.add(id(head))
        with tf.GradientTape() as tape:
            loss = (1 + sdp.rank()) * tf.reduce_sum(body) * tf.reduce_sum(head)
        gradients = sdp.DistributedGradientTape(tape).gradient(loss, [body, head])
        np.testing.assert_allclose(gradients[0], [3 * count] * 3)
        np.testing.assert_allclose(gradients[1], [4.5] * 2)
        if sdp.rank() == 1:
            kept.append(head)
        del head, tape, loss, gradients
    if sdp.rank() == 0:
        assert len(addresses) < 100, "no address came again: nothing was tested"
        assert len(gradient_steps._steps) == 0


def check_changing_shapes() -> None:
    """Lists of eager code need no reducer, factors of one variable a few; traced functions keep theirs."""
    rank, variable, files = sdp.rank(), tf.Variable([1.0]), []
    traced = tf.function(lambda x: sdp.grouped_allreduce([x, x + 1])[1])
    for count in range(1, 21):
        first, second = sdp.grouped_allreduce([tf.ones(count) * rank, tf.ones([]) * rank])
        np.testing.assert_allclose(first, [0.5] * count)
        assert float(second) == 0.5
        assert float(sdp.grouped_allreduce([tf.constant(float(rank))])[0]) == 0.5  # comes again and again
        with tf.GradientTape() as tape:
            loss = (1 + rank) * variable[0]
        tape = sdp.DistributedGradientTape(tape, prescale_factor=float(count))
        np.testing.assert_allclose(tape.gradient(loss, variable), [1.5 * count])
        np.testing.assert_allclose(traced(tf.constant([float(rank)])), [1.5])
        files.append(len(os.listdir("/proc/self/fd")))
        assert len(gradient_steps._steps) <= gradient_steps._MOST_EAGER + 1
    assert files[-1] <= files[-8] + 4, files


def test_changing_shapes() -> None:
    run(check_changing_shapes, 2)
    run(check_changing_shapes, 2, hosts=[0, 1])


def resident_mib() -> float:
    gc.collect()
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def check_memory() -> None:
    """Neither new shapes nor new variables, and their names, leave anything behind in TensorFlow."""
    named = [tf.Variable([1.0], name=f"v{i}") for i in range(460)]

    def lists() -> None:
        for count in range(1, 10):
            sdp.grouped_allreduce([tf.ones(count), tf.ones(2)])

    def variables() -> None:
        for _ in range(9):
            variable = tf.Variable([1.0])
            with tf.GradientTape() as tape:
                loss = variable[0]
            sdp.DistributedGradientTape(tape).gradient(loss, variable)

    def names() -> None:
        sdp.broadcast_variables(named[-20:], 0)
        del named[-20:]

    for some in (lists, variables, names):
        for _ in range(3):
            some()
        grown = []
        for _ in range(5):
            before = resident_mib()
            for _ in range(4):
                some()
            grown.append(resident_mib() - before)
        # What is kept grows each time; what allocators and threads take for themselves comes now and then.
        assert min(grown) < 0.5, (some, grown)


def test_memory() -> None:
    run(check_memory, 2)


def check_eager_list() -> None:
    """Large and small ones, of several dtypes, in their order; gradients come long after the call."""
    rank, large = sdp.rank(), 1 << 17
    values = [tf.fill([2, 3], 1.0 + rank), tf.constant([rank, 2]), tf.fill([large], 1.0 + rank), tf.ones([])]
    values += [tf.constant([3 * rank]), tf.zeros([0, 4]), tf.fill([2], tf.cast(rank, tf.bfloat16))]
    with tf.GradientTape() as tape:
        tape.watch(values)
        sums = sdp.grouped_allreduce(values, op=sdp.ReduceOp.SUM, postscale_factor=2.0)
        for count in range(12):
            sdp.grouped_allreduce([tf.ones(40 + count), tf.ones(1)])
        loss = (1.0 + rank) * (tf.reduce_sum(sums[0] ** 2) + tf.reduce_sum(sums[2]))
    for value, total, expected in zip(values, sums, [6, [2, 8], 6, 4, 6, 0, 2], strict=True):
        assert value.dtype == total.dtype
        assert np.all(total == np.broadcast_to(expected, value.shape)) and value.shape == total.shape
    first, third = tape.gradient(loss, [values[0], values[2]])
    np.testing.assert_array_equal(first, np.full([2, 3], 2 * 3 * 2 * 6))
    np.testing.assert_array_equal(third, np.full([large], 2 * 3))
    with pytest.raises(smdp.MismatchError, match=r"tensor 1 is float32\[6\] on rank 1 and float32\[2, 3\]"):
        sdp.grouped_allreduce([tf.ones([3]), tf.ones([[2, 3], [6]][rank])])
    for least in (0, 1):
        match = rf"tensor {least} is float32\[2\] on rank 1 and missing on rank 0"
        with pytest.raises(smdp.MismatchError, match=match):
            sdp.grouped_allreduce([tf.ones([2])] * (least + rank))
    assert sdp.grouped_allreduce([]) == []
    assert sdp.allgather_object(rank) == [0, 1]


def test_eager_list() -> None:
    run(check_eager_list, 2)
    run(check_eager_list, 2, env={"SMDP_TENSORFLOW_OPS": "python"})


def check_lists_keep_nothing() -> None:
    """What int8 and topk lose of one list would come in another of the same shapes."""
    large, small = tf.linspace(-1000.0, 1000.0, 40000), tf.linspace(-1e-3, 1e-3, 40000)
    for wire in (sdp.Compression.int8, sdp.Compression.topk):

        @tf.function
        def both(wire=wire):
            return [sdp.grouped_allreduce([one], compression=wire)[0] for one in (large, small)]

        for call in (both, both, both.python_function):
            for got, expected in zip(call(), (large, small), strict=True):
                np.testing.assert_array_equal(got, expected)


def test_lists_keep_nothing() -> None:
    run(check_lists_keep_nothing, 2, hosts=[0, 1])


def check_caught_error() -> None:
    """An op of backward fails on one rank, which catches it and goes on to other calls: nobody waits."""
    first, second = tf.Variable(tf.ones([20, 300])), tf.Variable(tf.ones([300, 700]))

    @tf.custom_gradient
    def poisoned(y, bad):
        def gradient(upstream):
            # When the gradient of the second, which is large, has been sent.
            late = tf.where(bad, np.nan, 1.0) * tf.linalg.matmul(upstream, upstream, transpose_b=True)[0, 0]
            return tf.debugging.check_numerics(late, "broken on purpose") * upstream, None

        return y, gradient

    @tf.function
    def step(bad):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(poisoned(tf.ones([4, 20]) @ first, bad) @ second)
        return sdp.DistributedGradientTape(tape).gradient(loss, [first, second])

    for _ in range(20):
        step(tf.constant(False))
    start = time.monotonic()
    told = r"rank 1 of 2: step 21 of these gradients was begun, but not all of them arrived"
    with pytest.raises(tf.errors.OpError, match=told if sdp.rank() == 0 else "broken on purpose"):
        step(tf.constant(sdp.rank() == 1))
    if sdp.rank() == 0:
        with pytest.raises(tf.errors.OpError, match=told):
            step(tf.constant(False))
        sdp.barrier()
    else:
        sdp.barrier()
        with pytest.raises(tf.errors.OpError, match=told):
            step(tf.constant(False))
    assert time.monotonic() - start < 10


@pytest.mark.skipif(os.environ.get("SMDP_TENSORFLOW_OPS") == "python", reason="of the op library")
def test_caught_error() -> None:
    run(check_caught_error, 2)


def test_replaced_head() -> None:
    run(check_replaced_head, 2, env={"SMDP_TEST_TIMEOUT": "15"})
