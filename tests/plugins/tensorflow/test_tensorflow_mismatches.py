"""Ranks that do not agree on a shape hear of it: never wrong sums, never a wait."""

from __future__ import annotations

import contextlib
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
    """Of as many elements on both ranks, which sizes alone do not tell apart; each group fails once."""
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

    @tf.function
    def start():
        sdp.broadcast_variables(variables, 0)
        return sdp.oob_allreduce(1.0)  # the root, which only sends, may hear of it in the next call

    seen = r"float32\[[23]\]" + ("" if sdp.rank() == 0 else ".*variable 'two")
    with pytest.raises(tf.errors.InvalidArgumentError, match=seen):
        start()


def check_label_in_eager_code() -> None:
    """Which comes behind what the core says; the root, which only sends, need not hear of it."""
    group = smdp.world().split(0)
    if sdp.rank() == 0:
        with contextlib.suppress(tf.errors.OpError):
            broadcast_labeled(tf.ones(2), 0, group, "variable 'two'")
            sdp.barrier(group=group)
        return
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"float32\[[23]\].* Here it was variable 'two'\.$"
    ):
        broadcast_labeled(tf.ones(3), 0, group, "variable 'two'")


@pytest.mark.parametrize("ops", ["native", "python"])
def test_shapes(ops: str) -> None:
    run(check_shapes, 2, env={"SMDP_TENSORFLOW_OPS": ops})


@pytest.mark.skipif(not is_native, reason="ops in Python tell no label")
def test_variables_in_a_graph() -> None:
    run(check_variables_in_a_graph, 2)


@pytest.mark.skipif(not is_native, reason="ops in Python tell no label")
def test_label_in_eager_code() -> None:
    run(check_label_in_eager_code, 2)
