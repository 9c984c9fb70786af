"""Ranks that do not agree on a shape hear of it: never wrong sums, never a wait."""

from __future__ import annotations

import os
import time

import pytest
import tensorflow as tf
from tensorflow_spawn import run

import smdp
import smdp.tensorflow as sdp
from smdp.tensorflow.collectives import broadcast_labeled

is_native = os.environ.get("SMDP_TENSORFLOW_OPS") != "python"


def check_shapes() -> None:
    """Of as many elements on both ranks, which sizes alone do not tell apart."""
    rank = sdp.rank()
    sideways = [[2, 2, 3], [2, 3, 2]]
    splits = [[2, 0], [0, 2]][rank]
    for call, shapes, seen in (
        (sdp.reducescatter, [[2, 6], [4, 3]], r"\[2, 6\].*\[4, 3\]|\[4, 3\].*\[2, 6\]"),
        (sdp.allgather, sideways, r"\[2, 2, 3\].*\[2, 3, 2\]|\[2, 3, 2\].*\[2, 2, 3\]"),
        (sdp.alltoall, sideways, r"\[2, 3\].*\[3, 2\]|\[3, 2\].*\[2, 3\]"),
        (
            lambda x, **options: sdp.alltoall(x, splits, **options),
            sideways,
            r"\[2, 3\].*\[3, 2\]|\[3, 2\].*\[2, 3\]",
        ),
        (sdp.allreduce, [[2, 6], [4, 3]], r"\[2, 6\].*\[4, 3\]|\[4, 3\].*\[2, 6\]"),
    ):
        group = smdp.world().split(0)
        start = time.monotonic()
        with pytest.raises((tf.errors.InvalidArgumentError, smdp.MismatchError), match=seen):
            call(tf.ones(shapes[rank]), group=group)
        assert time.monotonic() - start < 5
        assert sdp.allgather_object(rank) == [0, 1]  # the world goes on


def check_variables_in_a_graph() -> None:
    variables = [tf.Variable(tf.ones(3), name="one"), tf.Variable(tf.ones(2 + sdp.rank()), name="two")]
    some = variables[: 1 + sdp.rank()]
    group = smdp.world().split(0)

    @tf.function
    def start(given):
        sdp.broadcast_variables(given, 0, group=group)

    last, other = (("one", 2), ("two", 1))[sdp.rank()]
    match = rf"got lists of different lengths: {len(some)} variables here \(the last is .*{last}.*\[{other}\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        start(some)
    start(variables[:1])  # the group goes on
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"float32\[[23]\].*variable 'two"):
        start(variables)


def check_label_in_eager_code() -> None:
    """Which comes behind what the core says."""
    group = smdp.world().split(0)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"float32\[[23]\].* This call was for variable 'two'\.$"
    ):
        broadcast_labeled(tf.ones(2 + sdp.rank()), 0, group, "variable 'two'")


def check_roots() -> None:
    """In a graph, also beside eager code; the root, which only sends, hears of it in that call, too."""
    rank, variable = sdp.rank(), tf.Variable([1.0])
    errors = (tf.errors.OpError, smdp.MismatchError)
    for own, other in ((0, 1), (1, 0)):
        group = smdp.world().split(0)
        given = tf.function(
            lambda root=(own, other)[rank], g=group: sdp.broadcast_variables([variable], root, group=g)
        )
        with pytest.raises(errors, match=rf"called broadcast #2 float32\[1\] from rank {own}"):
            given()
    group = smdp.world().split(0)
    start = tf.function(sdp.broadcast_variables) if rank == 0 else sdp.broadcast_variables
    with pytest.raises(errors, match=r"int32\[2\].*int64\[2\]|int64\[2\].*int32\[2\]"):
        start([variable], 0, group=group)
    for call in (sdp.broadcast, lambda x, root, group: tf.function(sdp.broadcast)(x, root, group=group)):
        group = smdp.world().split(0)
        with pytest.raises(errors, match=r"from rank 0,.* from rank 1\.|from rank 1,.* from rank 0\."):
            call(variable, rank, group=group)
    assert sdp.allgather_object(rank) == [0, 1]


def check_options() -> None:
    """Of a tape: nobody waits for a call that the other does not make."""
    variable, kinds, rank = tf.Variable([1.0], name="kernel"), sdp.ReduceOp, sdp.rank()
    average = r"their mean, .* on rank 0: .* their sum times 1,.*Use the same options"
    largest = (
        r"kernel(:0)?' float32 \(MAX times 1 of float32\[1\]\) on rank 1, and 'kernel(:0)?' float32\[1\]"
    )
    nothing = r"\(AVERAGE times 0 of float32\[1\]\) on rank 1"
    for options, seen in (
        ([{"op": kinds.SUM}, {"op": kinds.AVERAGE}], average),
        ([{"op": kinds.SUM}, {"op": kinds.MAX}], largest),
        ([{}, {"postscale_factor": 0.0}], nothing),
        ([{"prescale_factor": 2.0}, {"prescale_factor": 3.0}], r"sum times 1\.5, .* sum times 1,"),
        ([{"compression": "none"}, {"compression": "fp16"}], r"are compression fp16, .* compression none"),
    ):

        def gradients(options=options):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable * variable)
            return sdp.DistributedGradientTape(tape, **options[rank]).gradient(loss, [variable])

        for call in (gradients, tf.function(gradients, autograph=False)):
            with pytest.raises(smdp.MismatchError, match=f"the lists of gradients differ: .*{seen}"):
                call()
    assert sdp.allgather_object(rank) == [0, 1]


def check_no_label() -> None:
    if sdp.rank() == 0:
        time.sleep(4)
        return
    with pytest.raises(tf.errors.DeadlineExceededError, match=r"from rank 0 timed out after 1 s"):
        sdp.broadcast(tf.ones(2), 0)


@pytest.mark.parametrize("ops", ["native", "python"])
def test_shapes(ops: str) -> None:
    run(check_shapes, 2, env={"SMDP_TENSORFLOW_OPS": ops})


@pytest.mark.parametrize("ops", ["native", "python"])
def test_options(ops: str) -> None:
    run(check_options, 2, env={"SMDP_TENSORFLOW_OPS": ops})


@pytest.mark.parametrize("hosts", [None, [0, 1]])
def test_roots(hosts: list[int] | None) -> None:
    run(check_roots, 2, hosts=hosts)


@pytest.mark.skipif(not is_native, reason="ops in Python raise another error")
def test_no_label() -> None:
    run(check_no_label, 2, env={"SMDP_TEST_TIMEOUT": "1"})


@pytest.mark.skipif(not is_native, reason="ops in Python tell no label")
def test_variables_in_a_graph() -> None:
    run(check_variables_in_a_graph, 2)


@pytest.mark.skipif(not is_native, reason="ops in Python tell no label")
def test_label_in_eager_code() -> None:
    run(check_label_in_eager_code, 2)
