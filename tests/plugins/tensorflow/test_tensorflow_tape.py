"""The distributed tape: gradients of all ranks, whatever the program around it does, and what misuse gets."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_spawn import run

import smdp
import smdp.tensorflow as sdp
from smdp.tensorflow.library import is_keras_3


class Net(tf.Module):
    """A small network with a large layer, an unused variable and a float64 one."""

    def __init__(self, seed: int = 0, width: int = 700) -> None:
        super().__init__()
        random = np.random.default_rng(seed)
        self.w1 = tf.Variable(random.normal(size=(20, width)).astype("float32") / 5, name="w1")
        self.w2 = tf.Variable(random.normal(size=(width, width)).astype("float32") / 30, name="w2")
        self.w3 = tf.Variable(random.normal(size=(width, 3)).astype("float32") / 30, name="w3")
        self.scale = tf.Variable(1.0, name="scale")
        self.bias = tf.Variable(np.zeros(3), name="bias", dtype=tf.float64)
        self.unused = tf.Variable(1.0, name="unused")

    @property
    def all(self) -> list[tf.Variable]:
        return [self.w1, self.w2, self.w3, self.scale, self.bias, self.unused]

    def loss(self, x: tf.Tensor) -> tf.Tensor:
        y = tf.tanh(tf.tanh(x @ self.w1) @ self.w2) @ self.w3 * self.scale
        return tf.reduce_mean(tf.square(tf.cast(y, tf.float64) + self.bias - 1.0))


def rows(step: int, rank: int | None = None) -> tf.Tensor:
    """All rows of a step, or a rank's."""
    x = np.random.default_rng(step).normal(size=(4 * sdp.size(), 20)).astype("float32")
    return tf.constant(x if rank is None else x[4 * rank : 4 * rank + 4])


def gradients_alone(net: Net, step: int) -> list[tf.Tensor | None]:
    with tf.GradientTape() as tape:
        loss = net.loss(rows(step))
    return tape.gradient(loss, net.all)


def close(got, expected, limit: float = 1e-6) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=limit)


def check_training() -> None:
    """Twenty steps in every way to write them give the variables of one process."""
    alone = Net()
    for step in range(20):
        for variable, gradient in zip(alone.all, gradients_alone(alone, step), strict=True):
            if gradient is not None:
                variable.assign_sub(tf.cast(0.5, gradient.dtype) * gradient)

    def apply(net, x):
        with tf.GradientTape() as tape:
            loss = net.loss(x)
        gradients = sdp.DistributedGradientTape(tape).gradient(loss, net.all)
        assert gradients[-1] is None
        for variable, gradient in zip(net.all, gradients, strict=True):
            if gradient is not None:
                variable.assign_sub(tf.cast(0.5, gradient.dtype) * gradient)

    def in_loop(net, first, last):
        data = tf.stack([rows(step, sdp.rank()) for step in range(20)])
        for i in tf.range(first, last):
            apply(net, data[i])

    def in_cond(net, x, flag):
        if flag:
            apply(net, x)
        else:
            apply(net, x)

    for way in ("eager", "graph", "loop", "cond", "unrolled", "two functions"):
        net = Net()
        graph, other = tf.function(apply), tf.function(apply)
        for step in range(20):
            x = rows(step, sdp.rank())
            if way == "eager":
                apply(net, x)
            elif way == "graph":
                graph(net, x)
            elif way == "cond":
                graph = tf.function(in_cond) if step == 0 else graph
                graph(net, x, tf.constant(step % 3 == 0))
            elif way == "two functions":
                (graph, other)[step % 2](net, x)
        if way == "loop":
            tf.function(in_loop)(net, tf.constant(0), tf.constant(20))
        elif way == "unrolled":
            tf.function(lambda net=net: [apply(net, rows(s, sdp.rank())) for s in range(20)] and None)()
        close([v.numpy() for v in net.all], [v.numpy() for v in alone.all], 1e-5)
        bits = [v.numpy().tobytes() for v in net.all]
        assert all(other == bits for other in sdp.allgather_object(bits)), way


def check_shapes_of_use() -> None:
    net = Net()
    expected = gradients_alone(net, 3)
    x = rows(3, sdp.rank())

    @tf.function
    def nested(x):  # one structure in, the same out; the tape as a context manager; only one gradient used
        with sdp.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = net.loss(x)
        found = tape.gradient(loss, {"a": net.w1, "b": [net.w3, net.unused]})
        return found["b"][0]

    np.testing.assert_allclose(nested(x), expected[2], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(nested(x), expected[2], rtol=1e-4, atol=1e-6)

    def times_zero(x):
        with tf.GradientTape() as tape:
            loss = net.loss(x)
        tape = sdp.DistributedGradientTape(tape, prescale_factor=0)
        return [*tape.gradient(loss, [net.w1, net.bias]), *sdp.grouped_allreduce([x], postscale_factor=0.0)]

    for call in (times_zero, tf.function(times_zero)):
        for got, like in zip(call(x), (net.w1, net.bias, x), strict=True):
            np.testing.assert_array_equal(got, np.zeros(like.shape))

    again = sdp.DistributedGradientTape(tf.GradientTape())
    for factor in (1.0, 2.0):
        with again:
            loss = factor * (sdp.rank() + 1) * net.scale
        np.testing.assert_allclose(again.gradient(loss, net.scale), factor * (sdp.size() + 1) / 2)

    @tf.function(reduce_retracing=True)
    def unknown(x):  # the batch differs between ranks, and so do the traces
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x @ net.w1)
        return sdp.DistributedGradientTape(tape, op=sdp.ReduceOp.SUM).gradient(loss, [net.w1])[0]

    for count in (1, 2, 3, 1):
        got = unknown(tf.ones((count + sdp.rank(), 20)))
        np.testing.assert_allclose(got, np.full((20, 700), sum(count + r for r in range(sdp.size()))))

    @tf.function
    def two_at_once(x):  # of equal shapes in one graph
        with tf.GradientTape(persistent=True) as tape:
            one, two = tf.reduce_sum(x @ net.w1), 3 * tf.reduce_sum(x @ net.w1)
        a = sdp.DistributedGradientTape(tape).gradient(one, [net.w1])[0]
        b = sdp.DistributedGradientTape(tape).gradient(two, [net.w1])[0]
        return a, b

    for _ in range(5):
        one, two = two_at_once(tf.ones((1, 20)) * (sdp.rank() + 1))
        np.testing.assert_allclose(one, np.full((20, 700), (sdp.size() + 1) / 2), rtol=1e-6)
        np.testing.assert_allclose(two, 3 * one, rtol=1e-6)

    with tf.GradientTape() as outer:  # a gradient of a gradient
        with tf.GradientTape() as tape:
            loss = (sdp.rank() + 1) * net.scale**3
        inner = sdp.DistributedGradientTape(tape).gradient(loss, net.scale)
    np.testing.assert_allclose(inner, 3 * (sdp.size() + 1) / 2)
    np.testing.assert_allclose(outer.gradient(inner, net.scale), 6 * (sdp.rank() + 1), rtol=1e-6)

    embedding = tf.Variable(tf.zeros((50, 4)))
    ids = tf.constant([1, 1, 7 + sdp.rank()])
    for as_dense in (False, True):

        @tf.function
        def sparse(as_dense=as_dense):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.nn.embedding_lookup(embedding, ids))
            tape = sdp.DistributedGradientTape(tape, sparse_as_dense=as_dense)
            return tf.convert_to_tensor(tape.gradient(loss, embedding))

        wanted = np.zeros((50, 4))
        wanted[1] = 2
        for rank in range(sdp.size()):
            wanted[7 + rank] = 1 / sdp.size()
        np.testing.assert_allclose(sparse(), wanted)

    for op, expected_max in ((sdp.ReduceOp.MAX, sdp.size()), (sdp.ReduceOp.MIN, 1)):
        with tf.GradientTape() as tape:
            loss = (sdp.rank() + 1) * net.scale
        got = sdp.DistributedGradientTape(tape, op=op).gradient(loss, [net.scale])
        np.testing.assert_allclose(got[0], expected_max)


def check_compression() -> None:
    """Between hosts; what is lost is small, or comes later."""
    target = tf.constant(np.random.default_rng(1).normal(size=5000).astype("float32"))
    # top-k sends each element once in 100 steps, so a step must be short.
    cases = [
        ("fp16", 0.02, 800, 1e-3),
        ("bf16", 0.02, 800, 1e-2),
        ("int8", 0.02, 800, 1e-2),
        ("topk", 0.003, 3000, 0.05),
    ]
    for wire, rate, steps, limit in cases:
        w = tf.Variable(tf.zeros(5000), name=wire)

        @tf.function
        def step(w=w, wire=wire, rate=rate):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(w - target - 0.1 * sdp.rank())) / 2
            tape = sdp.DistributedGradientTape(tape, compression=getattr(sdp.Compression, wire))
            w.assign_sub(rate * tape.gradient(loss, w))

        for _ in range(steps):
            step()
        mean = (target + 0.1 * (sdp.size() - 1) / 2).numpy()
        assert np.abs(w.numpy() - mean).max() < limit, (wire, np.abs(w.numpy() - mean).max())


class FirstHalf:
    """Somebody's own compressor: only the first half of a tensor is sent."""

    @staticmethod
    def compress(tensor):
        flat = tf.reshape(tensor, [-1])
        return flat[: tf.size(flat) // 2], tf.shape(tensor)

    @staticmethod
    def decompress(tensor, ctx):
        return tf.reshape(tf.pad(tensor, [[0, tf.reduce_prod(ctx) - tf.size(tensor)]]), ctx)


class topk:  # a name of the core's
    """To bytes, whose sum would not be one."""

    @staticmethod
    def compress(tensor):
        return tf.cast(tf.round(tensor), tf.int8), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tf.cast(tensor, ctx)


class Wrong(topk):
    @staticmethod
    def decompress(tensor, ctx):
        pass


def check_own_compressor() -> None:
    hundred = tf.fill([2, 2], 100.3)
    for got in (
        sdp.allreduce(hundred, compression=topk),
        *sdp.grouped_allreduce([hundred], compression=topk),
        sdp.reducescatter(tf.concat([hundred] * sdp.size(), 0), compression=topk),
    ):
        np.testing.assert_allclose(got, np.full([2, 2], 100.0))
    with pytest.raises(TypeError, match=r"got None for 'Wrong.decompress\(\)'"):
        sdp.allreduce(hundred, compression=Wrong)
    with pytest.raises(ValueError, match=r"or a class or object with compress\(\) and decompress"):
        sdp.allreduce(hundred, compression=object())
    v, w, unused = (tf.Variable(tf.zeros([2, 2]), name=name) for name in "vwu")
    mean = (1 + sdp.size()) / 2
    wanted = np.array([[mean, mean], [0, 0]])
    for given in (FirstHalf, FirstHalf()):
        x = tf.fill([2, 2], sdp.rank() + 1.0)
        np.testing.assert_allclose(sdp.allreduce(x, compression=given), wanted)
        for got in sdp.grouped_allreduce([x, x], compression=given, op=sdp.ReduceOp.SUM):
            np.testing.assert_allclose(got, sdp.size() * wanted)

        def gradients(given=given):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(v) * (sdp.rank() + 1) + 2 * tf.reduce_sum(w)
            return sdp.DistributedGradientTape(tape, compression=given).gradient(loss, [v, w, unused])

        for call in (gradients, tf.function(gradients)):
            of_v, of_w, of_unused = call()
            np.testing.assert_allclose(of_v, wanted)
            np.testing.assert_allclose(of_w, [[2, 2], [0, 0]])
            assert of_unused is None
        if is_keras_3:
            optimizer = sdp.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), compression=given)
            optimizer.apply([x], [v])
            np.testing.assert_allclose(v, -wanted)
            v.assign(tf.zeros([2, 2]))


def check_refusals() -> None:
    net = Net()
    x = rows(0, sdp.rank())
    with tf.GradientTape(persistent=True) as tape:
        loss = net.loss(x)
    twice = sdp.DistributedGradientTape(tape)
    twice.gradient(loss, [net.w1])
    with pytest.raises(RuntimeError, match="was called a second time, now for w1"):
        twice.gradient(loss, [net.w1])
    with pytest.raises(ValueError, match="bucket_cap_mb is 0"):
        sdp.DistributedGradientTape(tape, bucket_cap_mb=0)

    @tf.function(jit_compile=True)
    def compiled():
        with tf.GradientTape() as tape:
            loss = net.loss(x)
        return sdp.DistributedGradientTape(tape).gradient(loss, [net.w1])[0]

    with pytest.raises(ValueError, match="has jit_compile=True, but XLA cannot compile"):
        compiled()

    # Different lists: an error everywhere that names the rank, the variables and both shapes.
    with tf.GradientTape() as tape:
        loss = net.loss(x)
    sources = [net.w1, net.w2] if sdp.rank() == 0 else [net.w1, net.w3]
    start = time.monotonic()
    with pytest.raises(
        smdp.MismatchError, match=r"'w3.*' float32\[700, 3\] on rank 1, and 'w2.*\[700, 700\] on rank 0"
    ):
        sdp.DistributedGradientTape(tape).gradient(loss, sources)
    assert time.monotonic() - start < 5


def check_other_lists() -> None:
    """Lists that differ in what is no dense gradient, too, in an eager call each."""
    table, net = tf.Variable(tf.zeros((50, 4)), name="table"), Net(width=20)
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 2])) + tf.cast(
            net.loss(rows(0, 0)), tf.float32
        )
    sources = [[table, net.w1], [net.w1]][sdp.rank()]
    with pytest.raises(
        smdp.MismatchError, match=r"IndexedSlices of float32\[4\].* on rank 0.*sparse_as_dense"
    ):
        sdp.DistributedGradientTape(tape).gradient(loss, sources)
    sources = [[net.unused], [net.scale]][sdp.rank()]
    with pytest.raises(
        smdp.MismatchError, match=r"no gradient.* on rank 0.*UnconnectedGradients\.ZERO gives"
    ):
        sdp.DistributedGradientTape(tape).gradient(loss, sources)


def check_tables_of_other_sizes() -> None:
    """The rows are alike, the tables are not: a vocabulary of each rank's own data."""
    table = tf.Variable(tf.zeros((50 + 10 * sdp.rank(), 4)), name="table")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 2]))
    with pytest.raises(smdp.MismatchError, match=r"table.* of a variable \(60, 4\)\) on rank 1.*\(50, 4\)"):
        sdp.DistributedGradientTape(tape).gradient(loss, [table])


def check_traces_that_need_more() -> None:
    """Other variables, another shape, a group: what only the second trace of a function needs."""
    traces, pair = [], [tf.Variable(tf.ones(5)), tf.Variable(tf.ones(3))]
    part = smdp.world().split(0)

    @tf.function
    def step(x, which, group):
        traces.append(which)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(pair[which] ** 2) * x
        (mean,) = sdp.DistributedGradientTape(tape).gradient(loss, [pair[which]])
        return mean, sdp.allreduce(x, group=part if group else None)

    @tf.function
    def grouped(x):
        return sdp.grouped_allreduce([x, x])[0]

    x = tf.constant(float(sdp.rank()))
    for which, group in ((0, False), (1, False), (1, True), (0, False)):
        mean, total = step(x, which, group)
        np.testing.assert_allclose(mean, np.full(5 - 2 * which, 1.0))
        assert float(total) == 0.5
    assert traces == [0, 1, 1], "a first call is traced once"
    for count in (3, 4):
        np.testing.assert_array_equal(grouped(tf.ones(count)), np.ones(count))


def check_order_through_calls() -> None:
    """Sparse steps in functions of their own, which TensorFlow could run at once."""
    tables = [tf.Variable(tf.zeros((9, 2)), name=f"table{i}") for i in range(4)]

    def make(table, weight):
        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = weight * tf.reduce_sum(tf.nn.embedding_lookup(table, [sdp.rank(), 5]))
            gradient = sdp.DistributedGradientTape(tape).gradient(loss, table)
            table.scatter_sub(gradient)

        return step

    steps = [make(table, float(i + 1)) for i, table in enumerate(tables)]

    @tf.function
    def outer(flag):
        for step in steps:
            step()
        if flag:
            steps[0]()
        for _ in tf.range(2):
            steps[1]()

    for _ in range(10):
        outer(tf.constant(True))
    for i, (table, times) in enumerate(zip(tables, (20, 30, 10, 10), strict=True)):
        expected = np.zeros((9, 2))
        expected[5] = -(i + 1) * times
        expected[: sdp.size()] = -(i + 1) * times / sdp.size()
        np.testing.assert_allclose(table.numpy(), expected, rtol=1e-5)


def check_failing_op() -> None:
    """An op of the step fails on one rank; the others hear of it as soon as that one goes."""
    net = Net()

    @tf.function
    def early(x, bad):
        with tf.GradientTape() as tape:
            x = tf.debugging.check_numerics(tf.where(bad, np.inf, 1.0) * x, "infinite on purpose")
            loss = net.loss(x)
        return sdp.DistributedGradientTape(tape).gradient(loss, [net.w1, net.w2])

    @tf.function
    def step(x, bad):
        with tf.GradientTape() as tape:
            loss = net.loss(x)
        gradients = sdp.DistributedGradientTape(tape).gradient(loss, [net.w1, net.w2])
        with tf.control_dependencies([tf.debugging.assert_equal(bad, False)]):
            return [tf.identity(g) for g in gradients]

    x = rows(0, sdp.rank())
    step(x, tf.constant(False))
    if sdp.rank() == 1:  # caught, before backward had anything: the step is begun anew
        with pytest.raises(tf.errors.InvalidArgumentError, match="infinite on purpose"):
            early(x, tf.constant(True))
    step(x, tf.constant(False))

    @tf.custom_gradient
    def poisoned(y, bad):
        def gradient(upstream):
            late = tf.where(bad, np.nan, 1.0) * tf.linalg.matmul(upstream, upstream, transpose_b=True)[0, 0]
            return tf.debugging.check_numerics(late, "broken on purpose") * upstream, None

        return y, gradient

    @tf.function
    def broken(x, bad):
        with tf.GradientTape() as tape:
            # In backward, when the gradient of w2, which is large, has been sent.
            hidden = poisoned(x @ net.w1, bad)
            loss = tf.reduce_sum(hidden @ net.w2)
        return sdp.DistributedGradientTape(tape).gradient(loss, [net.w1, net.w2])

    start = time.monotonic()
    if sdp.rank() == 1:
        broken(x, tf.constant(True))  # raises, and nobody catches it
    with pytest.raises(
        tf.errors.OpError,
        match=r"rank 1 (\(host .* has left the group: it raised InvalidArgumentError|of 2: step .* of these)",
    ):
        broken(x, tf.constant(False))
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("hosts", [[0, 1], pytest.param([0, 0, 1, 1], marks=pytest.mark.slow)], ids=str)
def test_training(hosts: list[int]) -> None:
    run(check_training, len(hosts), hosts=hosts)


def test_shapes_of_use() -> None:
    run(check_shapes_of_use, 2)


def test_own_compressor() -> None:
    run(check_own_compressor, 2)


def test_compression() -> None:
    run(check_compression, 2, hosts=[0, 1])


def test_refusals() -> None:
    run(check_refusals, 2)


def test_other_lists() -> None:
    run(check_other_lists, 2)
    run(check_tables_of_other_sizes, 2)


def test_traces_that_need_more() -> None:
    run(check_traces_that_need_more, 2)


def test_order_through_calls() -> None:
    run(check_order_through_calls, 2)


def test_failing_op() -> None:
    run(check_failing_op, 2, exits={1: 1})
