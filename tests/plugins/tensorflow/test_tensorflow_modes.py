"""Every public call gives the same in eager code, in a tf.function and in a graph of TensorFlow 1."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_spawn import run

import smdp.tensorflow as sdp
from smdp.tensorflow.library import is_keras_3


def slices(rank: int, shape: object = None) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.fill([2, 3], rank + 1.0), tf.constant([rank, rank + 1]), dense_shape=shape)


def rows_of(reduced: tf.IndexedSlices) -> tf.Tensor:
    assert isinstance(reduced, tf.IndexedSlices)
    return tf.math.unsorted_segment_sum(reduced.values, reduced.indices, 4)[:, 0]


def of_mixed_list(shape: object) -> list[tf.Tensor]:
    rank = sdp.rank()
    given = [slices(rank, shape), tf.fill([4], float(rank)), slices(rank, shape), tf.fill([2], float(rank))]
    first, second, third, fourth = sdp.grouped_allreduce(given, op=sdp.Sum)
    return [rows_of(first), second, rows_of(third), fourth]


def of_tape() -> list[tf.Tensor]:
    x = tf.constant([1.0, 2.0]) * (sdp.rank() + 1)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(x * x)
    return [sdp.DistributedGradientTape(tape).gradient(loss, x)]


layers: list[tf.keras.layers.Layer] = []  # a function may not make their variables


def make_layer() -> None:
    if is_keras_3:
        layers[:] = [sdp.SyncBatchNormalization(epsilon=1e-9)]
        layers[0].build((None, 1))


def of_oob_calls() -> list[tf.Tensor]:
    first = sdp.oob_allreduce(tf.constant(sdp.rank() * 1.0))
    # Without the op library nothing else orders the two in a graph of TensorFlow 1.
    with tf.control_dependencies([tf.convert_to_tensor(first)]):
        return [first, sdp.oob_allreduce(2)]


def of_norm() -> list[tf.Tensor]:
    return [layers[0](tf.constant([[sdp.rank() * 2.0]]), training=True)]


# By call, with what two ranks get: one list for both, or one for each.
CALLS = {
    "allreduce": (lambda: [sdp.allreduce(tf.constant([1.0, 2.0]) * sdp.rank())], [[0.5, 1.0]]),
    "allreduce of slices": (lambda: [rows_of(sdp.allreduce(slices(sdp.rank()), op=sdp.Sum))], [[1, 3, 2, 0]]),
    "allreduce of dense slices": (
        lambda: [rows_of(sdp.allreduce(slices(sdp.rank(), tf.constant([3, 3])), op=sdp.Sum))],
        [[1, 3, 2, 0]],
    ),
    "allreduce in int8": (lambda: [sdp.allreduce(tf.constant([sdp.rank() * 2], tf.int8))], [[1]]),
    "allreduce in fp16": (
        lambda: [sdp.allreduce(tf.constant([1.0]), compression=sdp.Compression.fp16)],
        [[1.0]],
    ),
    "oob_allreduce": (of_oob_calls, [0.5, 2.0]),
    "grouped_allreduce": (
        lambda: sdp.grouped_allreduce([tf.constant([1.0]), tf.fill([2, 2], float(sdp.rank()))], op=sdp.Sum),
        [[2.0], [[1.0, 1.0], [1.0, 1.0]]],
    ),
    "grouped_allreduce by MAX": (
        lambda: sdp.grouped_allreduce([tf.constant([sdp.rank()]), tf.constant([3.0])], op=sdp.Max),
        [[1], [3.0]],
    ),
    "grouped_allreduce of both": (
        lambda: of_mixed_list(None),
        [[1, 3, 2, 0], [1] * 4, [1, 3, 2, 0], [1] * 2],
    ),
    "grouped_allreduce of both, with a shape": (
        lambda: of_mixed_list(tf.constant([5, 3], tf.int32)),
        [[1, 3, 2, 0], [1] * 4, [1, 3, 2, 0], [1] * 2],
    ),
    "allgather": (lambda: [sdp.allgather(tf.fill([sdp.rank() + 1], sdp.rank()))], [[0, 1, 1]]),
    "broadcast": (lambda: [sdp.broadcast(tf.constant([sdp.rank() + 5]), 1)], [[6]]),
    "alltoall": (lambda: [sdp.alltoall(tf.constant([1, 2]) + 10 * sdp.rank())], ([[1, 11]], [[2, 12]])),
    "alltoall by splits": (
        lambda: list(sdp.alltoall(tf.constant([1, 2, 3]), splits=[1, 2])),
        ([[1, 1], [1, 1]], [[2, 3, 2, 3], [2, 2]]),
    ),
    "reducescatter": (
        lambda: [sdp.reducescatter(tf.constant([1.0, 2.0, 3.0]), op=sdp.Sum)],
        ([[2.0, 4.0]], [[6.0]]),
    ),
    "barrier": (lambda: [sdp.barrier()], [None]),
    "DistributedGradientTape": (of_tape, [[3.0, 6.0]]),
    "broadcast_object": (lambda: sdp.broadcast_object({"of": sdp.rank()}, 1), {"of": 1}),
    "broadcast_object of nothing": (lambda: sdp.broadcast_object(None), None),
    "allgather_object": (lambda: sdp.allgather_object("x" * sdp.rank()), ["", "x"]),
}
if is_keras_3:
    CALLS["SyncBatchNormalization"] = (of_norm, ([[[-1.0]]], [[[1.0]]]))
# What they do is seen in variables, which differ between modes: see check_variables().
OF_VARIABLES = {"broadcast_variables", "DistributedOptimizer"}
NO_CALLS = {"Average", "Compression", "Max", "Min", "Product", "ReduceOp", "Sum"}
NO_CALLS |= {"init", "is_initialized", "local_rank", "local_size", "rank", "shutdown", "size"}


def test_the_table_has_every_call() -> None:
    calls = {name.split()[0] for name in CALLS} | OF_VARIABLES
    assert set(sdp.__all__) - NO_CALLS - calls == (set() if is_keras_3 else {"SyncBatchNormalization"})


def is_of_objects(name: str) -> bool:
    return "_object" in name


def check(mode, name, got) -> None:
    expected = CALLS[name][1]
    expected = expected[sdp.rank()] if isinstance(expected, tuple) else expected
    if is_of_objects(name):
        assert got == expected, (mode, name, got)
        return
    assert len(got) == len(expected), (mode, name, got)
    for one, other in zip(got, expected, strict=True):
        if other is not None:
            np.testing.assert_allclose(one, other, atol=1e-4, err_msg=f"{mode}: {name}")


def in_eager_code() -> None:
    make_layer()
    for name, (call, _) in CALLS.items():
        check("eager", name, call())


def in_functions() -> None:
    make_layer()
    for name, (call, _) in CALLS.items():
        if is_of_objects(name):
            with pytest.raises(RuntimeError, match="works on tensors, not on objects"):
                tf.function(call, autograph=False)()
            continue
        got = tf.function(lambda call=call: [one for one in call() if one is not None], autograph=False)()
        check("tf.function", name, got or [None])


def in_graphs() -> None:
    for name, (call, _) in CALLS.items():
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            make_layer()
            got = call()
            if not is_of_objects(name):
                session.run(tf.compat.v1.global_variables_initializer())
                got = session.run(got)
            check("graph", name, got)


def check_variables() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        first, second = (
            tf.compat.v1.get_variable(n, initializer=tf.fill([2], sdp.rank() + 1.0)) for n in "ab"
        )
        done = sdp.broadcast_variables([first, second], 1)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(done)
        np.testing.assert_array_equal(session.run([first, second]), [[2.0, 2.0]] * 2)
    for mode in (lambda f: f, tf.function):
        variables = [tf.Variable([sdp.rank() + 1.0]), tf.Variable(sdp.rank())]
        mode(lambda variables=variables: sdp.broadcast_variables(variables, 1))()
        np.testing.assert_array_equal(variables[0], [2.0])
        assert variables[1].numpy() == 1
        if is_keras_3:
            optimizer = sdp.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
            optimizer.build(variables[:1])
            mode(lambda o=optimizer, v=variables: o.apply([tf.constant([sdp.rank() * 2.0])], v[:1]))()
            np.testing.assert_array_equal(variables[0], [1.0])


def all_modes() -> None:
    in_eager_code()
    in_functions()
    in_graphs()
    check_variables()


def without_eager_code() -> None:
    """As scripts for TensorFlow 1 do it."""
    tf.compat.v1.disable_eager_execution()
    in_graphs()


@pytest.mark.parametrize("ops", ["native", "python"])
@pytest.mark.parametrize("body", [all_modes, without_eager_code])
def test_modes(ops, body) -> None:
    run(body, env={"SMDP_TENSORFLOW_OPS": ops})
