"""Calls as SMDDP and Horovod spell them, and what wrong ones get."""

from __future__ import annotations

import functools
import os
import pathlib
import threading
import warnings

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_spawn import run

import smdp
import smdp.tensorflow as sdp
from smdp.tensorflow.keras import callbacks
from smdp.tensorflow.library import is_keras_3

keras = tf.keras
C, Sum = sdp.Compression, sdp.ReduceOp.SUM


def check_horovods_calls() -> None:
    size, x = sdp.size(), tf.constant([1.0, 2.0])
    total = [1.0 * size, 2.0 * size]
    for call in (
        lambda: sdp.allreduce(x, False, "", "", C.fp16),
        lambda: sdp.allreduce(x, None, "/cpu:0", "/cpu:0", op=Sum),
        lambda: sdp.allreduce(x, None, "", "", compression=C.fp16, op=Sum),
        lambda: sdp.allreduce(x, None, "", "", C.none, Sum),
        lambda: sdp.allreduce(x, None, "", "", C.none, None, 1.0, float(size)),
        lambda: sdp.allreduce(x, None, "", "", C.none, Sum, 1.0, 1.0, "name", smdp.world(), True),
        lambda: sdp.allreduce(tensor=x, average=False, name="name", ignore_name_scope=True),
        lambda: sdp.allreduce(x, np.bool_(False)),
        lambda: sdp.allreduce(x, average=0),
        lambda: sdp.grouped_allreduce([x], np.bool_(False))[0],
        lambda: sdp.grouped_allreduce([x], False, ignore_name_scope=True)[0],
        lambda: sdp.grouped_allreduce([x], None, "", "", C.none, Sum, 0.5, 2.0, smdp.world(), True, "name")[
            0
        ],
        lambda: sdp.allreduce(x, 0, 2, C.none, Sum),  # SMDDP's
        lambda: sdp.allreduce(grad=x, param_index=0, num_params=2, op=Sum),
    ):
        np.testing.assert_allclose(call(), total)
    rows = tf.ones([2 * size, 1])
    for call in (
        lambda: sdp.reducescatter(rows, "", C.fp16, Sum, "name", smdp.world(), True, 0.5, 2.0),
        lambda: sdp.reducescatter(rows, op=Sum, compression=C.fp16, prescale_factor=1.0),
        lambda: sdp.reducescatter(rows, postscale_factor=float(size)),
    ):
        np.testing.assert_allclose(call(), [[size]] * 2)
    np.testing.assert_allclose(sdp.allgather(x, "name", True, smdp.world()), [1, 2] * size)
    np.testing.assert_allclose(sdp.broadcast(x * (1 + sdp.rank()), 1, "name", True, smdp.world()), [2, 4])
    assert sdp.alltoall(rows, None, "name", True, smdp.world()).shape == rows.shape
    variable = tf.Variable(x * sdp.rank())
    sdp.broadcast_variables([variable], 1, smdp.world(), inplace=True)
    np.testing.assert_allclose(variable, x)

    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable) * (1 + sdp.rank())
    tape = sdp.DistributedGradientTape(tape, "", "", C.none, False, Sum, 1.0, 0, None, smdp.world(), True)
    np.testing.assert_allclose(tape.gradient(loss, variable), [3, 3])
    callbacks.BroadcastGlobalVariablesCallback(0, "", local_variables=None)
    logs = {"loss": tf.constant(1.0 + sdp.rank()), "best": np.float32(sdp.rank()), "phase": "x", "none": None}
    callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    assert logs == {"loss": 1.5, "best": 0.5, "phase": "x", "none": None}
    if is_keras_3:
        sdp.DistributedOptimizer(keras.optimizers.SGD(), average_aggregated_gradients=True)
        best = callbacks.BestModelCheckpoint("val_accuracy")
        assert (best.monitor, str(best.filepath)) == ("val_accuracy", "best.keras")
        own = smdp.world().split(sdp.rank())
        alone = sdp.SyncBatchNormalization(process_set=own, fused=False)
        numbers = tf.constant([[1.0], [3.0]]) * (1 + sdp.rank())
        np.testing.assert_allclose(alone(numbers, training=True), [[-1], [1]], atol=1e-2)


def check_unsigned() -> None:
    for name in ("uint16", "uint32", "uint64"):
        top = np.iinfo(name).max
        mine = tf.constant([1, top - 1 - sdp.rank()], name)
        for op, expected in (
            (sdp.ReduceOp.MIN, [1, top - 2]),
            (sdp.ReduceOp.MAX, [1, top - 1]),
            (Sum, [2, top - 4]),  # wraps around
            (sdp.ReduceOp.PRODUCT, [1, 6]),
        ):
            np.testing.assert_array_equal(sdp.allreduce(mine, op=op).numpy(), np.array(expected, name))
        few = tf.constant([4, 7], name) * tf.constant(1 + sdp.rank(), name)
        np.testing.assert_array_equal(sdp.allreduce(few).numpy(), [6, 10])
        part = sdp.reducescatter(few, op=Sum)
        np.testing.assert_array_equal(part.numpy(), [12 if sdp.rank() == 0 else 21])
    # A metric: the mean of whole numbers is no whole number.
    assert float(sdp.oob_allreduce(1 + sdp.rank())) == 1.5
    np.testing.assert_allclose(sdp.oob_allreduce([1, 2 + sdp.rank()]), [1, 2.5])


def check_means_of_narrow_integers() -> None:
    """Of which the sum does not fit."""
    for name in ("int8", "uint8", "int16", "uint16", "uint32"):
        top, bottom = np.iinfo(name).max, np.iinfo(name).min
        mine = tf.constant([top, bottom, top - 2 * sdp.rank(), 7 + sdp.rank()], name)
        expected = np.array([top, bottom, top - 1, 7], name)
        float_one = tf.constant([1.0 + sdp.rank()])

        def calls(mine, float_one):
            several = sdp.grouped_allreduce([mine, float_one, mine[:3]])
            return (
                [sdp.allreduce(mine), sdp.oob_allreduce(mine), several[0]],
                several[1:],
                sdp.reducescatter(mine),
            )

        for call in (calls, tf.function(calls)):
            whole, (mean, part), own = call(mine, float_one)
            for got in whole:
                assert got.dtype == name
                np.testing.assert_array_equal(got.numpy(), expected)
            np.testing.assert_array_equal(mean.numpy(), [1.5])
            np.testing.assert_array_equal(part.numpy(), expected[:3])
            assert own.dtype == name
            np.testing.assert_array_equal(own.numpy(), np.split(expected, 2)[sdp.rank()])
    twice = tf.constant([100 if sdp.rank() == 0 else -50] * 2, tf.int8)  # twice of which does not fit
    np.testing.assert_array_equal(sdp.allreduce(twice, prescale_factor=2.0).numpy(), [50, 50])
    np.testing.assert_array_equal(sdp.reducescatter(twice, prescale_factor=2.0).numpy(), [50])
    np.testing.assert_array_equal(sdp.allreduce(tf.constant([-1 - sdp.rank()], tf.int8)).numpy(), [-1])
    # Integers have no gradient; a float beside them has its own.
    with tf.GradientTape() as tape:
        x = tf.Variable([2.0])
        loss = sdp.allreduce(x) * tf.cast(sdp.allreduce(tf.cast(x * 50, tf.int8)), tf.float32)
    assert tape.gradient(loss, x).numpy().tolist() == [100]


def check_wrong_ones() -> None:
    with tf.GradientTape() as tape:
        pass
    for call in (
        lambda: sdp.DistributedGradientTape(tape, op=17),
        lambda: sdp.reducescatter(tf.ones(2), op=17),
        lambda: sdp.allreduce(tf.ones(2), op=17),
    ):
        with pytest.raises(ValueError, match=r"\[smdp\] op is 17; allowed: ReduceOp.SUM"):
            call()
    for name, values in {
        "prescale_factor": ("2", None, np.nan, np.inf),
        "postscale_factor": ("2", None, np.nan, -np.inf),
        "bucket_cap_mb": ("25", None, np.nan, np.inf, 0, -1.0, 1e-9, 1e12),
    }.items():
        for value in values:
            options = {name: value}
            calls = [lambda options=options: sdp.DistributedGradientTape(tape, **options)]
            if is_keras_3:
                calls += [lambda options=options: sdp.DistributedOptimizer(keras.optimizers.SGD(), **options)]
            if name != "bucket_cap_mb":
                calls += [
                    lambda options=options: sdp.allreduce(tf.ones(2), **options),
                    lambda options=options: sdp.grouped_allreduce([tf.ones(2)], **options),
                    lambda options=options: sdp.reducescatter(tf.ones(2), **options),
                ]
            for call in calls:
                with pytest.raises(
                    (TypeError, ValueError), match=rf"^\[smdp\] {name} (is|=) .*(must|allowed)"
                ):
                    call()
    one = tf.Variable(1.0)
    for root in ("0", 0.0, None, 2, -1):
        for name, call in {
            "broadcast": lambda root: sdp.broadcast(tf.ones(2), root),
            "broadcast_object": lambda root: sdp.broadcast_object(1, root),
            "broadcast_variables": lambda root: sdp.broadcast_variables([one], root),
        }.items():
            with pytest.raises(
                (TypeError, ValueError), match=rf"^\[smdp\] {name}: root_rank (is|=).*allowed:"
            ):
                call(root)
    for call, message in (
        (lambda: sdp.allreduce(tf.ones(2), average="no"), "average is 'no'; allowed: True, False"),
        (lambda: sdp.allreduce({"a": 1}), "allreduce got a dict, which cannot be converted to a tensor"),
        (lambda: sdp.allgather(object()), "allgather got a object, which cannot be converted"),
        (lambda: sdp.oob_allreduce(None), "oob_allreduce got None; it takes dense"),
        (lambda: sdp.oob_allreduce(tf.ragged.constant([[1.0]])), "oob_allreduce got a RaggedTensor"),
        (lambda: sdp.grouped_allreduce(None), r"grouped_allreduce\(\) takes a list, but got a NoneType"),
        (lambda: sdp.grouped_allreduce(tf.constant(1.0)), r"grouped_allreduce\(\) takes a list, but got a"),
        (
            lambda: sdp.broadcast_variables(None, 0),
            r"broadcast_variables\(\) takes a list, but got a NoneType",
        ),
        (lambda: sdp.broadcast_variables(keras.Sequential(), 0), "got a Sequential. Pass model.weights"),
        (lambda: sdp.allreduce(tf.ones(2), param_index="a", num_params=2), "param_index = 'a' is not valid"),
        (lambda: callbacks.LearningRateWarmupCallback("a"), "initial_lr = 'a' is not valid"),
        (lambda: callbacks.LearningRateWarmupCallback(0.1, None), "warmup_epochs = None is not valid"),
        (lambda: callbacks.LearningRateWarmupCallback(0.1, -1), "warmup_epochs is -1.0; it must be"),
        (lambda: callbacks.LearningRateScheduleCallback(0.1, None), "multiplier = None is not valid"),
        (lambda: callbacks.LearningRateScheduleCallback(0.1, 1.0, "a"), "start_epoch = 'a' is not valid"),
        (lambda: callbacks.LearningRateWarmupCallback(0.1, 2, True, -3), "steps_per_epoch is -3; it must be"),
        (lambda: sdp.allreduce(tf.ones(2), group=2), "group .*is a int; it must be an smdp.Group"),
        (
            lambda: callbacks.BestModelCheckpoint(save_best_only=False),
            "keeps the best model; save_best_only is False",
        ),
        (
            lambda: sdp.allgather_object(threading.Lock()),
            r"rank \d of \d: allgather_object got <unlocked .*, which cannot be pickled: cannot pickle",
        ),
        (lambda: callbacks.BestModelCheckpoint(3), "BestModelCheckpoint got 3 instead of a path"),
        (lambda: callbacks.CommitStateCallback(None), "CommitStateCallback got None instead of a path"),
        (lambda: callbacks.CommitStateCallback("c", 0), "max_to_keep is 0; it must be at least 1"),
        (lambda: callbacks.CommitStateCallback("c").restore(None), "needs a model with variables"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            call()
    # A rank without a group is not taken for one of the world.
    part = smdp.world().split(None if sdp.rank() == 0 else 0)
    if part:
        assert float(sdp.allreduce(1.0, group=part, op=sdp.ReduceOp.SUM)) == sdp.size() - 1
    else:
        with pytest.raises(smdp.ConfigError, match=r"rank 0 of \d is in no group: its color in split"):
            sdp.allreduce(1.0, group=part)
    np.testing.assert_allclose(sdp.oob_allreduce(np.int64(sdp.rank())), (sdp.size() - 1) / 2)
    np.testing.assert_allclose(sdp.oob_allreduce(sdp.rank() == 0), 1 / sdp.size())
    callbacks.BestModelCheckpoint("best.keras", save_best_only=True)
    for rows, splits in ((3, None), (2, [5, 5])):
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"rank {sdp.rank()} of \d: alltoall"):
            sdp.alltoall(tf.ones(rows), splits)
    with pytest.raises(TypeError, match=r"rank \d: alltoall got splits of float32; it takes integers"):
        sdp.alltoall(tf.ones(2), [1.0, 1.0])
    with pytest.raises(AttributeError, match=r"has no register_local_source\(\): it reduces all gradients"):
        sdp.DistributedGradientTape(tf.GradientTape()).register_local_source(one)
    with pytest.raises(TypeError, match=r"DistributedGradientTape takes a tf.GradientTape; this is NoneType"):
        sdp.DistributedGradientTape(None)
    for call in (lambda: sdp.broadcast_object(1, 0), lambda: sdp.allgather_object(1)):
        with pytest.raises(RuntimeError, match=r"rank \d: \w+_object was called in a tf\.function"):
            tf.function(call, autograph=False)()
    if is_keras_3:
        optimizer, one = sdp.DistributedOptimizer(keras.optimizers.SGD()), tf.Variable(1.0)
        with pytest.raises(ValueError, match=r"rank \d: 1 gradients were given for 2 variables"):
            optimizer.apply([tf.constant(1.0)], [one, one])
        with pytest.raises(ValueError, match=r"rank \d: apply\(\) got 1 gradients without variables.*build"):
            optimizer.apply([tf.constant(1.0)])
        tiny = tf.cast(tf.ones([1, 2]), tf.experimental.float8_e5m2)
        table = tf.Variable(tf.ones([1, 2]), name="table")
        for gradient in (tiny, tf.IndexedSlices(tiny, [0])):
            with pytest.raises(TypeError, match=r"allreduce got 'table(:0)?', a tensor of float8"):
                optimizer.apply([gradient], [table])
        optimizer.build([one])
        optimizer.apply([tf.constant(1.0)])
        for path in ("/model/best", pathlib.Path("best")):
            with pytest.raises(ValueError, match=r"got the path '.*best'.*Pass '.*best\.keras'"):
                callbacks.BestModelCheckpoint(path)
        with pytest.raises(ValueError, match=r"or, if it is the metric, monitor='val/acc'"):
            callbacks.BestModelCheckpoint("val/acc")
    logs = {"loss": 1.0, **({"val_loss": 2.0} if sdp.rank() == 1 else {})}
    with pytest.raises(smdp.MismatchError, match=r"has the metrics loss.*has loss"):
        callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    with pytest.raises(ValueError, match="got local_variables"):
        callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[tf.Variable(1.0)])
    label = tf.Variable("text", name="label")
    with pytest.raises(TypeError, match=r"rank \d: broadcast_variables got 'label(:0)?', a tensor of string"):
        sdp.broadcast_variables([label], 0)
    for no_variables, said in (({"kernel": label}, "str"), ([tf.ones(2)], "EagerTensor")):
        with pytest.raises(TypeError, match=rf"rank \d: broadcast_variables.*; number 0 is {said}"):
            sdp.broadcast_variables(no_variables, 0)
    for value, said in (
        (tf.ragged.constant([[1.0], [2.0, 3.0]]), "a RaggedTensor"),
        (tf.sparse.from_dense([1.0, 0.0]), "a SparseTensor"),
        (None, "None"),
    ):
        for call in (sdp.allgather, sdp.alltoall, sdp.reducescatter, lambda one: sdp.broadcast(one, 0)):
            with pytest.raises(TypeError, match=rf"rank \d: \w+ got {said}; it takes dense tensors"):
                call(value)
    once = sdp.DistributedGradientTape(tf.GradientTape())
    with pytest.raises(ValueError, match="would reduce twice"):
        sdp.DistributedGradientTape(once)
    for other, said in (
        (tf.Variable(tf.zeros([3, 2]), name="kernel"), r"float32\[3, 2\] on rank 1 and"),
        (tf.Variable(tf.zeros([2, 3], tf.float64), name="kernel"), r"float64\[2, 3\] on rank 1 and"),
    ):
        first = tf.Variable(tf.zeros([2, 3]), name="kernel")
        mine = first if sdp.rank() == 0 else other
        # Both ranks hear of it, and nothing was sent: they go on.
        match = rf"rank \d of 2: .*variable 1 is 'kernel(:0)?' {said}.*on rank 0"
        with pytest.raises(smdp.MismatchError, match=match):
            sdp.broadcast_variables([tf.Variable(1.0), mine], 0)
    with pytest.raises(smdp.MismatchError, match=r"variable 0 is (missing|.* on rank 1 and missing)"):
        sdp.broadcast_variables([tf.Variable(1.0)] * sdp.rank(), 0)
    with pytest.raises(smdp.MismatchError, match=r"rank \d of 2: .*root_rank is 1 on rank 1 and 0 on rank 0"):
        sdp.broadcast_variables([tf.Variable(1.0)], sdp.rank())
    sdp.broadcast_variables([tf.Variable(1.0)], np.int64(sdp.rank() * 0))
    with pytest.warns(RuntimeWarning, match=r"rank \d: broadcast_variables\(\) got an empty list"):
        sdp.broadcast_variables([], 0)  # what a model of Keras 3 has that is not built; Keras 2 raises there


def check_xla() -> None:
    x, variable = tf.ones(2), tf.Variable(tf.ones(2))
    calls = [
        lambda: sdp.allreduce(x),
        lambda: sdp.grouped_allreduce([x]),
        lambda: sdp.oob_allreduce(x),
        lambda: sdp.allgather(x),
        lambda: sdp.broadcast(x, 0),
        lambda: sdp.alltoall(x),
        lambda: sdp.reducescatter(x),
        sdp.barrier,
        lambda: sdp.broadcast_variables([variable], 0),
    ]
    if is_keras_3:
        layer = sdp.SyncBatchNormalization()
        layer.build((None, 2))
        calls.append(lambda: layer(tf.ones([2, 2]), training=True))
    for call in calls:
        compiled = tf.function(call, jit_compile=True)
        for trace in (compiled, compiled.get_concrete_function):
            with pytest.raises(ValueError, match="has jit_compile=True, but XLA cannot compile"):
                trace()
        call()


def test_horovods_calls() -> None:
    run(check_horovods_calls, 2)


def test_unsigned_integers() -> None:
    run(check_unsigned, 2)


@pytest.mark.parametrize("env", [{}, {"SMDP_TENSORFLOW_OPS": "python"}])
def test_means_of_narrow_integers(env: dict[str, str]) -> None:
    run(check_means_of_narrow_integers, 2, env=env)


def test_wrong_ones() -> None:
    run(check_wrong_ones, 2)


def test_xla_is_refused_while_it_is_traced() -> None:
    run(check_xla, 2)


def check_gradients_leave_one_by_one() -> None:
    """No large gradient waits for another before it is sent; small neighbours leave together."""
    weights = [tf.Variable(tf.random.normal([256, 256])) for _ in range(3)]
    biases = [tf.Variable(tf.random.normal([256])) for _ in range(2)]
    weights[1:1] = biases

    def step(x: tf.Tensor, listed: list[tf.Variable]) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.tanh(x @ weight if weight.shape.rank == 2 else x + weight)
            loss = tf.reduce_sum(x)
        return sdp.DistributedGradientTape(tape).gradient(loss, listed)

    # The order in which the user lists them changes nothing.
    for listed in (weights, weights[::-1], [weights[i] for i in (2, 4, 0, 1, 3)]):
        traced = tf.function(functools.partial(step, listed=listed)).get_concrete_function(tf.ones([2, 256]))
        made = traced.graph.get_operations()
        ready = [op for op in made if op.type == "SmdpGradientReady"]
        means = [op for op in made if op.type == "SmdpGradientMeans"]
        assert sorted(len(op.outputs) for op in ready) == [1, 1, 1, 2]
        assert not any(op.op_def.is_stateful for op in ready + means)
        for op in ready:
            assert not before(op) & {other.name for other in ready if other is not op}, op.name
        gradients = [op.name for op in made if any(op in {x.op for x in one.inputs[:-1]} for one in ready)]
        begin = next(op for op in made if op.type == "SmdpGradientBegin")
        assert before(begin) & set(gradients) == {gradients[0]}


def before(op: tf.Operation) -> set[str]:
    """The names of all that runs before it."""
    seen, left = set(), [op]
    while left:
        current = left.pop()
        found = [*(tensor.op for tensor in current.inputs), *current.control_inputs]
        left += [one for one in found if one.name not in seen]
        seen |= {one.name for one in found}
    return seen


@pytest.mark.skipif(os.environ.get("SMDP_TENSORFLOW_OPS") == "python", reason="of the op library")
def test_gradients_leave_one_by_one() -> None:
    run(check_gradients_leave_one_by_one, 2)


def check_saved_batch_norm() -> None:
    folder = os.environ["KEPT"]
    norm = sdp.SyncBatchNormalization(momentum=0.5)
    net = keras.Sequential([keras.Input((3,)), norm, keras.layers.Dense(1)])
    net(tf.random.stateless_normal((8, 3), seed=(1, 1)), training=True)
    net.save(f"{folder}/net.keras")
    np.save(f"{folder}/expected.npy", net(tf.ones([2, 3])).numpy())


@pytest.mark.skipif(not is_keras_3, reason="needs Keras 3")
def test_saved_batch_norm_loads_without_smdp(tmp_path, monkeypatch) -> None:
    run(check_saved_batch_norm, 1, env={"KEPT": str(tmp_path)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = keras.models.load_model(tmp_path / "net.keras")
    assert type(net.layers[0]) is keras.layers.BatchNormalization and net.layers[0].momentum == 0.5
    np.testing.assert_allclose(net(tf.ones([2, 3])), np.load(tmp_path / "expected.npy"), rtol=1e-6)
