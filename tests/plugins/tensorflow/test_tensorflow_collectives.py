"""Every collective, eager and in a graph, on all dtypes and odd shapes, with gradients, against NumPy."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_spawn import run

import smdp
import smdp.tensorflow as sdp
from smdp.tensorflow.groups import DTYPES

SHAPES = [(), (0,), (1,), (7,), (3, 0, 2), (5, 3), (40_000,)]


def value(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    random = np.random.default_rng([rank, *shape])
    numbers = random.integers(0, 2 if dtype == "bool" else 5, shape)
    return np.asarray(numbers).astype(tf.as_dtype(dtype).as_numpy_dtype)


def values(shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    return [value(rank, shape, dtype) for rank in range(sdp.size())]


def both(function):
    """The function as it is and as a graph, with shapes unknown to the trace."""
    graph = tf.function(function, reduce_retracing=True)
    return [function, graph]


def same(got: tf.Tensor, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(got.numpy(), np.asarray(expected).astype(got.dtype.as_numpy_dtype))


def check_reductions() -> None:
    for run_it in both(lambda x: sdp.allreduce(x, op=sdp.ReduceOp.SUM)):
        for dtype in DTYPES:
            for shape in SHAPES:
                summed = np.sum([v.astype("complex128") for v in values(shape, dtype)], axis=0)
                if dtype == "bool":
                    summed = np.any(values(shape, dtype), axis=0)
                elif "complex" not in dtype:
                    summed = summed.real
                same(run_it(tf.constant(value(sdp.rank(), shape, dtype))), summed)
    for op, numpy in [
        (sdp.ReduceOp.MIN, np.min),
        (sdp.ReduceOp.MAX, np.max),
        (sdp.ReduceOp.PRODUCT, np.prod),
    ]:
        for dtype in ("float32", "int64"):
            got = sdp.allreduce(tf.constant(value(sdp.rank(), (5, 3), dtype)), op=op)
            same(got, numpy(values((5, 3), dtype), axis=0))
    for run_it in both(sdp.reducescatter):
        for rows in (0, 1, 7):
            mean = np.mean(values((rows, 3), "float64"), axis=0)
            own = np.array_split(mean, sdp.size())[sdp.rank()]
            np.testing.assert_allclose(run_it(tf.constant(value(sdp.rank(), (rows, 3), "float64"))), own)


def check_movements() -> None:
    rank, size = sdp.rank(), sdp.size()
    for run_it in both(lambda x: sdp.broadcast(x, size - 1)):
        for dtype in DTYPES:
            for shape in SHAPES:
                same(run_it(tf.constant(value(rank, shape, dtype))), value(size - 1, shape, dtype))
    for run_it in both(sdp.allgather):
        for dtype in DTYPES:
            parts = [value(r, (r + 1, 2), dtype) for r in range(size)]
            same(run_it(tf.constant(parts[rank])), np.concatenate(parts))
        parts = [value(r, (0 if r else 3, 2), "float32") for r in range(size)]  # rank 0 alone has something
        same(run_it(tf.constant(parts[rank])), np.concatenate(parts))
    for run_it in both(lambda x, n: sdp.alltoall(x, n)):
        # Rank r sends r + to rows to rank `to`.
        sent = {r: [r + to for to in range(size)] for r in range(size)}
        inputs = {r: value(r, (sum(sent[r]), 2), "int32") for r in range(size)}
        blocks = [np.split(inputs[r], np.cumsum(sent[r])[:-1])[rank] for r in range(size)]
        got, counts = run_it(tf.constant(inputs[rank]), tf.constant(sent[rank], tf.int64))
        same(got, np.concatenate(blocks))
        assert counts.numpy().tolist() == [len(block) for block in blocks]
    got = sdp.alltoall(tf.range(2 * size) + 100 * rank)
    assert got.numpy().tolist() == [100 * r + 2 * rank + i for r in range(size) for i in range(2)]
    sdp.barrier()
    assert sdp.broadcast_object({"rank": rank}, root_rank=1) == {"rank": 1}
    assert sdp.allgather_object("x" * rank) == ["x" * r for r in range(size)]
    if find_spec("cloudpickle"):
        assert [each() for each in sdp.allgather_object(lambda: rank)] == list(range(size))


def check_gradients() -> None:
    rank, size = sdp.rank(), sdp.size()
    weights = tf.constant(np.arange(4.0 * size).reshape(2 * size, 2) + rank)

    def gradient(function, rows):
        x = tf.ones((rows, 2), tf.float64)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
            loss = tf.reduce_sum(y * weights[: tf.shape(y)[0]])
        return tape.gradient(loss, x)

    def plain(rows):
        return [(np.arange(4.0 * size).reshape(2 * size, 2) + r)[:rows] for r in range(size)]

    for every in (gradient, tf.function(gradient)):
        np.testing.assert_allclose(
            every(lambda x: sdp.allreduce(x, op=sdp.ReduceOp.SUM), 3), np.sum(plain(3), axis=0)
        )
        np.testing.assert_allclose(every(sdp.allreduce, 3), np.mean(plain(3), axis=0))
        expected = np.sum(plain(3), axis=0) if rank == 1 else np.zeros((3, 2))
        np.testing.assert_allclose(every(lambda x: sdp.broadcast(x, 1), 3), expected)
        total = np.sum(plain(2 * size), axis=0)
        np.testing.assert_allclose(every(sdp.allgather, 2), total[2 * rank : 2 * rank + 2])
        back = np.concatenate([p[rank : rank + 1] for p in plain(size)])
        np.testing.assert_allclose(every(sdp.alltoall, size), back)
        scattered = np.concatenate([p[:1] for p in plain(1)]) / size
        np.testing.assert_allclose(every(sdp.reducescatter, size), scattered)


def check_groups_and_forms() -> None:
    rank, size = sdp.rank(), sdp.size()
    x = tf.constant([1.0, 2.0]) * (rank + 1)
    total = np.array([1.0, 2.0]) * sum(range(1, size + 1))
    mean = total / size
    same(sdp.allreduce(grad=x, param_index=0, num_params=1), mean)  # SMDDP
    same(sdp.allreduce(x, False), total)  # Horovod, average=False by position
    same(sdp.allreduce(tensor=x, average=True), mean)
    same(sdp.allreduce(x, op=sdp.ReduceOp.SUM, prescale_factor=0.5, postscale_factor=4.0), 2 * total)
    same(sdp.allreduce(x, compression=sdp.Compression.fp16), mean)
    same(sdp.oob_allreduce([float(rank), 2.0 * rank]), np.array([1.0, 2.0]) * (size - 1) / 2)
    same(tf.function(sdp.oob_allreduce)(x), mean)
    slices = tf.IndexedSlices(
        tf.constant([[1.0], [2.0], [4.0]]) * (rank + 1), tf.constant([3, 1, 3]), tf.constant([5, 1])
    )
    dense = np.array([[0], [2], [0], [5], [0]]) * sum(range(1, size + 1)) / size
    np.testing.assert_allclose(tf.convert_to_tensor(sdp.allreduce(slices)), dense)
    reduced = tf.function(
        lambda: sdp.grouped_allreduce([x, slices, tf.constant([rank]), x + 1], op=sdp.ReduceOp.SUM)
    )()
    same(reduced[0], total)
    np.testing.assert_allclose(tf.convert_to_tensor(reduced[1]), dense * size)
    same(reduced[2], [sum(range(size))])
    same(reduced[3], total + size)

    # More rows together than the variable has: they come as the whole of it.
    many = tf.IndexedSlices(tf.ones([4, 1]) * (rank + 1), tf.range(4), tf.constant([5, 1]))
    total_of_many = tf.function(lambda: sdp.allreduce(many, op=sdp.ReduceOp.SUM))()
    same(total_of_many.indices, list(range(5)))
    same(total_of_many.values[:, 0], np.array([1, 1, 1, 1, 0]) * sum(range(1, size + 1)))
    few = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([rank]), tf.constant([50, 1]))
    same(sdp.allreduce(few, op=sdp.ReduceOp.SUM).indices, list(range(size)))

    half = smdp.world().split(rank % 2)
    same(
        sdp.allreduce(tf.constant(float(rank)), op=sdp.ReduceOp.SUM, group=half),
        sum(range(rank % 2, size, 2)),
    )
    same(sdp.broadcast(tf.constant(rank), 0, process_set=half), rank % 2)


def check_graphs_of_tensorflow_1() -> None:
    """One after the other, with eager code between them, as training and evaluation have them."""
    rank = float(sdp.rank())
    for _ in range(2):
        assert sdp.allreduce(tf.constant([rank]), op=sdp.ReduceOp.SUM).numpy() == [1]
        with tf.Graph().as_default():
            total = sdp.allreduce(tf.constant([rank + 1]), op=sdp.ReduceOp.SUM)
            weight = tf.compat.v1.get_variable("w", initializer=tf.constant([1.0, 2.0]), use_resource=True)
            with sdp.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = tf.reduce_sum(weight * rank)
            gradient = tape.gradient(loss, [weight])
            assert tf.compat.v1.global_variables() == [weight], "a saver would find more"
            with tf.compat.v1.Session() as session:
                session.run(weight.initializer)
                for _ in range(2):
                    assert session.run(total) == [3]
                    assert session.run(gradient)[0].tolist() == [0.5, 0.5]


def check_refusals() -> None:
    with pytest.raises(TypeError, match="allreduce got a tensor of string"):
        sdp.allreduce(tf.constant("a"))
    with pytest.raises(ValueError, match=r"op is 17; allowed: ReduceOp\.SUM"):
        sdp.allreduce(tf.constant(1.0), op=17)
    with pytest.raises(ValueError, match="root_rank is 9; allowed: 0 to 1"):
        sdp.broadcast(tf.constant(1.0), 9)
    with pytest.raises(ValueError, match="adds the error of one step to the next"):
        sdp.allreduce(tf.constant(1.0), compression=sdp.Compression.int8)
    with pytest.raises(ValueError, match="compression is 'zip'"):
        sdp.allreduce(tf.constant(1.0), compression="zip")
    with pytest.raises(TypeError, match=r"must be an smdp\.Group"):
        sdp.allreduce(tf.constant(1.0), group="world")
    with pytest.raises(ValueError, match="param_index is 3; allowed: 0 to 1"):
        sdp.allreduce(tf.constant(1.0), 3, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the tensor is a scalar"):
        sdp.allgather(tf.constant(1.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="add up to"):
        sdp.alltoall(tf.range(4), [1, 1])
    same(sdp.allreduce(tf.constant(1.0)), 1)  # none of this has hurt


# tests/core runs every collective on every layout; here it is enough that both ways to a peer are taken.
LAYOUTS = [[0, 0], [0, 1], pytest.param([0, 0, 1, 1], marks=pytest.mark.slow)]


@pytest.mark.parametrize("hosts", LAYOUTS, ids=str)
def test_reductions(hosts: list[int]) -> None:
    run(check_reductions, len(hosts), hosts=hosts)


@pytest.mark.parametrize("hosts", LAYOUTS, ids=str)
def test_movements(hosts: list[int]) -> None:
    run(check_movements, len(hosts), hosts=hosts)


@pytest.mark.parametrize("hosts", LAYOUTS, ids=str)
def test_gradients(hosts: list[int]) -> None:
    run(check_gradients, len(hosts), hosts=hosts)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_groups_and_forms(size: int) -> None:
    run(check_groups_and_forms, size)


def test_graphs_of_tensorflow_1() -> None:
    run(check_graphs_of_tensorflow_1, 2)


def test_refusals() -> None:
    run(check_refusals, 2)


def check_before_init() -> None:
    for call in (lambda: sdp.allreduce(tf.constant(1.0)), sdp.rank, sdp.barrier):
        with pytest.raises(smdp.ConfigError, match=r"call smdp.init\(\) first"):
            call()


def test_before_init() -> None:
    run(check_before_init, 1, init=False)
