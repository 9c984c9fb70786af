"""In a graph of TensorFlow 1 calls meet those of their name, whatever order TensorFlow runs them in."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_spawn import run

import smdp
import smdp.tensorflow as sdp

v1 = tf.compat.v1
RUNS = 30
# With these TensorFlow takes another order in about one of six runs.
ENV = {"TF_NUM_INTEROP_THREADS": "2"}


def later(value) -> tf.Tensor:
    """The value of an op that takes part in the race for a thread, and is not folded into a constant."""
    return tf.cast(v1.random_uniform([]) * 0 + tf.cast(value, tf.float32), tf.float32)


def summed(value, name=None, **more) -> tf.Tensor:
    return sdp.allreduce(later(value), op=sdp.Sum, name=name, **more)


def check(session, fetches, expected, runs=RUNS, **feed) -> None:
    for _ in range(runs):
        for got, wanted in zip(session.run(fetches, **feed), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


def check_calls(session) -> None:
    """As many calls as fit in one run, of every kind, with names and without."""
    values = range(1, 7)
    fetches, expected = [], []
    for value in values:
        block = tf.fill([2, 3], later(value))
        fetches += [summed(value), sdp.broadcast(later(value) + sdp.rank(), 1), sdp.allgather(block)]
        fetches += [sdp.reducescatter(block, op=sdp.Sum), sdp.alltoall(block), summed(-value, f"{value}")]
        one, two = np.full([1, 3], value), np.full([2, 3], value)
        expected += [2 * value, value + 1, np.full([4, 3], value), 2 * one, two, -2 * value]
    check(session, fetches, expected)


def check_subsets(session) -> None:
    """A loss in every run and a metric in some, whose input is fed only then."""
    fed = v1.placeholder(tf.float32, [])
    metric, loss = summed(fed), summed(5.0)
    for step in range(RUNS):
        check(session, [loss], [10.0], runs=1)
        if step % 10 == 0:
            check(session, [loss, metric], [10.0, 2.0 * step], runs=1, feed_dict={fed: step})


def check_names_in_another_order(session) -> None:
    """A program may make calls with names in an order of each rank, such as that of a set."""
    names = ["a", "b", "c", "d"]
    made = {name: summed(ord(name), name) for name in (names if sdp.rank() == 0 else reversed(names))}
    check(session, [made[name] for name in names], [2.0 * ord(name) for name in names])


def check_loops(session) -> None:
    def loop(of):
        return tf.while_loop(
            lambda i, _: i < 5,
            lambda i, total: (i + 1, total + of(i)),
            [tf.constant(0), tf.constant(0.0)],
            parallel_iterations=10,
        )[1]

    once = loop(lambda i: summed(i, "in a loop"))
    twice = loop(lambda i: loop(lambda k: summed(10 * i + k)))
    grouped = loop(lambda i: tf.add_n(sdp.grouped_allreduce([later(i), 2 * later(i)], op=sdp.Sum)))
    check(session, [once, twice, grouped], [20.0, 2 * 550.0, 60.0], runs=10)


def check_conditions(session) -> None:
    is_on = v1.placeholder(tf.bool, [])
    either = [tf.cond(is_on, lambda v=v: summed(v, "on"), lambda v=v: summed(-v, "off")) for v in (1, 2, 3)]
    for value in (True, False):
        sign = 1 if value else -1
        check(session, either, [2 * sign, 4 * sign, 6 * sign], runs=10, feed_dict={is_on: value})


def check_functions(session) -> None:
    """One function, called in several places."""

    @tf.function
    def both(x):
        first, second = sdp.grouped_allreduce([x, x + 1], op=sdp.Sum)
        return first + 10 * second + 100 * sdp.allreduce(x, op=sdp.Sum)

    check(session, [both(later(v)) for v in range(4)], [2 * v + 20 * (v + 1) + 200 * v for v in range(4)])


def check_gradients(session) -> None:
    inputs = [later(v) for v in (1, 2, 3)]
    reduced = [sdp.allreduce(x, op=sdp.Sum) ** 2 for x in inputs]
    gathered = [tf.reduce_sum(sdp.allgather([x]) ** 2) for x in inputs]
    check(session, tf.gradients(reduced, inputs), [8.0, 16.0, 24.0])
    check(session, tf.gradients(gathered, inputs), [4.0, 8.0, 12.0])


def check_lists(session) -> None:
    """Lists of equal shapes, and two losses over the same variables."""
    variables = [v1.get_variable(n, initializer=tf.zeros([2])) for n in "xy"]
    session.run(v1.global_variables_initializer())
    lists = [
        sdp.grouped_allreduce([tf.fill([2], later(v)), tf.fill([2], later(-v))], op=sdp.Sum)
        for v in (1, 2, 3)
    ]
    check(session, tf.nest.flatten(lists), [[2 * s * v] * 2 for v in (1, 2, 3) for s in (1, -1)])
    gradients = []
    for scale in (1.0, 2.0, 3.0):
        with tf.GradientTape() as tape:
            loss = later(scale) * tf.add_n([tf.reduce_sum(one) for one in variables])
        gradients += sdp.DistributedGradientTape(tape).gradient(loss, variables)
    check(session, gradients, [[scale] * 2 for scale in (1.0, 2.0, 3.0) for _ in variables])
    slices = [
        sdp.allreduce(tf.IndexedSlices(tf.fill([1, 2], later(v)), [0], dense_shape=[3, 2]), op=sdp.Sum).values
        for v in (1, 2, 3)
    ]
    check(session, slices, [[[2.0 * v] * 2] for v in (1, 2, 3)])


def check_threads(session) -> None:
    """Threads that each run sessions of one graph, and of another graph with the same names."""
    other = tf.Graph()
    fetches = {v: (session, summed(v, f"{v}")) for v in (1, 2)}
    with other.as_default():
        fetches[3] = v1.Session(graph=other), summed(3, "1")
    failed = []

    def work(value) -> None:
        try:
            own, fetch = fetches[value]
            check(own, [fetch], [2.0 * value])
        except Exception as error:  # noqa: BLE001 whatever it is, the main thread tells it
            failed.append(error)

    threads = [threading.Thread(target=work, args=[value]) for value in fetches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


CHECKS = [
    check_calls,
    check_subsets,
    check_names_in_another_order,
    check_loops,
    check_conditions,
    check_functions,
]
CHECKS += [check_gradients, check_lists, check_threads]


def all_checks() -> None:
    for one in CHECKS:
        with tf.Graph().as_default(), v1.Session() as session:
            one(session)


def with_control_flow_of_tensorflow_1() -> None:
    v1.disable_control_flow_v2()
    all_checks()


def on_a_group() -> None:
    group = smdp.world().split(0)
    with tf.Graph().as_default(), v1.Session() as session:
        check(session, [summed(v, group=group) for v in range(5)], [2.0 * v for v in range(5)])


@pytest.mark.parametrize("body", [all_checks, with_control_flow_of_tensorflow_1, on_a_group])
def test_values(body) -> None:
    run(body, env=ENV)


def different_fetches() -> None:
    """One rank fetches what the other does not: nobody gets a value."""
    with tf.Graph().as_default(), v1.Session() as session:
        fetches = [summed(1.0, "loss"), summed(2.0, "accuracy")]
        with pytest.raises(tf.errors.DeadlineExceededError, match="'loss'") as caught:
            session.run(fetches[sdp.rank()])
        assert "timed out" in str(caught.value)


def test_fetches_that_differ() -> None:
    run(different_fetches, env={**ENV, "SMDP_TEST_TIMEOUT": "5"})
