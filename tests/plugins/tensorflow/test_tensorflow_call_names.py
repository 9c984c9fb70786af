"""Where one program does not order calls, none gets the value of another one of its shape."""

from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow_spawn import run

import smdp
import smdp.tensorflow as sdp

groups: list[smdp.Group] = []  # calls go to the last one


def call(value: float, name: str | None = None) -> tf.Tensor:
    return sdp.allreduce(value, op=sdp.Sum, name=name, group=groups[-1])


def first() -> tf.Tensor:
    return call(1.0)


def second() -> tf.Tensor:
    return call(2.0)


def loss() -> tf.Tensor:
    return call(1.0, "loss")


def accuracy() -> tf.Tensor:
    return call(2.0, "accuracy")


def of_python(function):
    return tf.function(lambda: tf.py_function(function, [], tf.float32))


def of_data() -> tf.Tensor:
    return next(iter(tf.data.Dataset.range(1).map(lambda _: call(1.0))))


# What rank 0 and rank 1 call, and what each of these calls is known by.
PAIRS = {
    "names in eager code": (loss, accuracy, "'loss'", "'accuracy'"),
    "names in functions": (tf.function(loss), tf.function(accuracy), "'loss'", "'accuracy'"),
    "a name and none": (loss, first, "'loss'", "all_reduce #"),
    "Python functions": (
        of_python(first),
        of_python(second),
        "'Python function first",
        "'Python function second",
    ),
    "a Python function and an op": (
        of_python(first),
        tf.function(first),
        "'Python function first",
        "all_reduce #",
    ),
    "tf.data and eager code": (of_data, first, "'call in a function of tf.data'", "all_reduce #"),
}


def mix_up() -> None:
    for what, (of_rank_0, of_rank_1, *texts) in PAIRS.items():
        groups.append(smdp.world().split(0))
        with pytest.raises((tf.errors.OpError, smdp.MismatchError)) as caught:
            (of_rank_0 if sdp.rank() == 0 else of_rank_1)()
        for text in texts:
            assert text in str(caught.value), (what, str(caught.value))


@pytest.mark.parametrize("ops", ["native", "python"])
def test_a_mix_up_is_an_error(ops) -> None:
    run(mix_up, env={"SMDP_TENSORFLOW_OPS": ops})


def test_parallel_functions_of_data_are_refused() -> None:
    data = tf.data.Dataset.range(2)
    smdp.init(0, 1)
    try:
        with pytest.raises(ValueError, match="num_parallel_calls"):
            data.map(lambda x: sdp.allreduce(tf.cast(x, tf.float32)), num_parallel_calls=2)
        group = smdp.world().split(0)
        elements = data.map(lambda x: sdp.allreduce(tf.cast(x, tf.float32), group=group)).prefetch(2)
        assert [float(element) for element in elements] == [0.0, 1.0]
    finally:
        smdp.shutdown()


def calls_of_data_in_a_group() -> None:
    group = smdp.world().split(0)
    data = tf.data.Dataset.range(50).map(
        lambda x: sdp.allreduce(tf.cast(x, tf.float32), op=sdp.Sum, group=group)
    )
    for index, element in enumerate(data.prefetch(5)):
        assert float(element) == 2.0 * index
        assert float(sdp.allreduce(index + 100.0, op=sdp.Sum)) == 2 * (index + 100.0)


def test_data_with_a_group_of_its_own_runs_beside_the_program() -> None:
    run(calls_of_data_in_a_group)
