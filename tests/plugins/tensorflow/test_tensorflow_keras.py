"""Keras 3: fit with a distributed optimizer, callbacks, synchronized batch norm, saved models."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_spawn import run

import smdp
import smdp.tensorflow as sdp
import smdp.tensorflow.keras as sdp_keras
from smdp.tensorflow.keras import callbacks

keras = tf.keras
is_keras_3 = hasattr(keras, "ops")
needs_keras_3 = pytest.mark.skipif(not is_keras_3, reason="needs Keras 3")
FOLDER = Path(os.environ.get("SMDP_TEST_FOLDER", "."))


def model(seed: int = 1, norm: type | None = None) -> tf.keras.Model:
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(30, activation="relu"), keras.layers.Dense(3)]
    if norm is not None:
        layers.insert(1, norm(momentum=0.5))
    net = keras.Sequential([keras.layers.Input((8,)), *layers])
    return net


def data(rows: int = 64) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    return random.normal(size=(rows, 8)).astype("float32"), random.normal(size=(rows, 3)).astype("float32")


def mine(array: np.ndarray, batch: int = 16) -> np.ndarray:
    """This rank's part of every global batch."""
    parts = array.reshape(-1, batch, array.shape[1])
    own = np.split(parts, sdp.size(), axis=1)[sdp.rank()]
    return own.reshape(-1, array.shape[1])


def weights(net: tf.keras.Model) -> list[np.ndarray]:
    return [np.array(w) for w in net.get_weights()]


def check_fit() -> None:
    """As one process with the global batch, with clipping, weight decay, accumulation, mixed precision."""
    x, y = data()
    makers = {
        "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "clip": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1),
        "accumulate": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
        "decay": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    }
    for name, make in makers.items():
        alone, ours = model(), model(seed=1 + sdp.rank())
        sdp.broadcast_variables(ours.variables, root_rank=0)
        alone.compile(make(), "mse")
        alone.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        optimizer = make()
        wrapped = sdp.DistributedOptimizer(optimizer)
        assert wrapped is optimizer and type(wrapped) is type(make())
        assert {**wrapped.get_config(), "name": ""} == {**make().get_config(), "name": ""}
        ours.compile(wrapped, "mse", jit_compile="auto")
        ours.fit(mine(x), mine(y), batch_size=16 // sdp.size(), epochs=2, shuffle=False, verbose=0)
        for a, b in zip(weights(ours), weights(alone), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5, err_msg=name)
        names = [
            [v.path.split("/")[-1].split("_")[-1] for v in net.optimizer.variables] for net in (ours, alone)
        ]
        assert names[0] == names[1]
    check_optimizer_with_a_branch()
    # As "auto" is on a GPU.
    ours.compile(wrapped, "mse", jit_compile=True)
    with pytest.raises(ValueError, match=r"XLA cannot compile communication.*or the BroadcastGlobalVar"):
        ours.fit(x, y, verbose=0)
    ours.compile(wrapped, "mse", jit_compile=True)
    given = {"verbose": 0, "callbacks": [callbacks.BroadcastGlobalVariablesCallback()]}
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        ours.evaluate(x, y, **given)
        ours.predict(x, **given)
        model().predict(x, **given)  # not compiled
    assert ours.jit_compile is True
    with pytest.warns(RuntimeWarning, match=r"fit\(\) trains without XLA"):
        ours.fit(x, y, **given)
    assert ours.jit_compile is False
    ours.fit(x, y, verbose=0)
    with pytest.raises(ValueError, match="distributed already"):
        sdp.DistributedOptimizer(wrapped)
    with pytest.raises(TypeError, match="takes an optimizer of Keras 3; this is Sequential"):
        sdp.DistributedOptimizer(ours)


def check_training_apart() -> None:
    """A loaded model's optimizer is not distributed, which is told once; not of one by our load_model()."""
    x, y = data()
    net = model()
    net.compile(sdp.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    path = FOLDER / f"apart{sdp.rank()}.keras"
    net.save(path)

    def told(net: keras.Model) -> list[str]:
        given = [
            callbacks.BroadcastGlobalVariablesCallback(),
            callbacks.MetricAverageCallback(),
            callbacks.CommitStateCallback(FOLDER / f"apart{sdp.rank()}"),
        ]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(2):
                net.fit(mine(x), mine(y), verbose=0, callbacks=given)
        return [str(one.message) for one in caught if "is not distributed" in str(one.message)]

    (text,) = told(keras.models.load_model(path))
    assert text.startswith(f"[smdp] rank {sdp.rank()} of 2: fit() has the optimizer SGD,"), text
    loaded = sdp_keras.load_model(path)
    assert told(loaded) == [] == told(net)
    bits = [one.tobytes() for one in weights(loaded)]
    assert sdp.allgather_object(bits) == [bits, bits]

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.layer = keras.layers.Dense(3)

        def call(self, x):
            return self.layer(x)

        def train_step(self, data):
            with sdp.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = self.compute_loss(x=data[0], y=data[1], y_pred=self(data[0]))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    own = Own()
    own.compile(keras.optimizers.SGD(0.1), "mse")
    own.build((None, 8))
    assert told(own) == []


def check_names() -> None:
    """What scripts call of horovod.tensorflow.keras."""
    rank, x = sdp_keras.rank(), tf.constant([1.0, 2.0])
    assert sdp_keras.is_initialized() and sdp_keras.size() == 2
    assert float(sdp_keras.allreduce(value=float(rank), name="one")) == 0.5
    assert sdp_keras.allreduce(x, "two", op=sdp_keras.Sum).numpy().tolist() == [2, 4]
    assert sdp_keras.allreduce(x, average=False, prescale_factor=2.0).numpy().tolist() == [4, 8]
    assert int(sdp_keras.allreduce(value=rank, op=sdp_keras.Max)) == 1
    assert int(sdp_keras.allreduce(value=rank, op=sdp_keras.Min)) == 0
    assert sdp_keras.reducescatter(x, name="three", op=sdp_keras.Sum).numpy().tolist() == [2.0 * (1 + rank)]
    assert sdp_keras.reducescatter(x).numpy().tolist() == [1.0 + rank]
    assert sdp_keras.allgather(value=[rank], name="four").numpy().tolist() == [0, 1]
    assert sdp_keras.broadcast(value=[rank], root_rank=1, name="five").numpy().tolist() == [1]
    alone = smdp.world().split(rank)
    assert sdp_keras.allreduce([rank], group=alone).numpy().tolist() == [rank]
    net = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(3)])
    commit = callbacks.CommitStateCallback(FOLDER / "uncompiled")
    with pytest.raises(ValueError, match=r"restore\(\) needs a model with an optimizer: call model\.compile"):
        commit.restore(net)
    net.compile(keras.optimizers.SGD(0.1), "mse")
    for root in ("0", 2):
        wrong = callbacks.BroadcastGlobalVariablesCallback(root)
        with pytest.raises(
            (TypeError, ValueError), match=r"BroadcastGlobalVariablesCallback: root_rank (is|=)"
        ):
            net.fit(*data(), verbose=0, callbacks=[wrong])


def check_dropout_stays_each_ranks_own() -> None:
    tf.keras.utils.set_random_seed(100 + sdp.rank())
    dropout = tf.keras.layers.Dropout(0.5)
    net = tf.keras.Sequential([tf.keras.layers.Input((8,)), dropout, tf.keras.layers.Dense(3)])
    net.compile(sdp.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")
    x, y = data()
    net.fit(x, y, verbose=0, callbacks=[callbacks.BroadcastGlobalVariablesCallback()])
    masks = sdp.allgather_object(dropout(tf.ones((8, 8)), training=True).numpy())
    assert not np.array_equal(*masks)
    assert all(np.array_equal(*sdp.allgather_object(one)) for one in weights(net))
    commit = callbacks.CommitStateCallback(FOLDER / f"seeds{sdp.rank()}")
    net.fit(x, y, verbose=0, callbacks=[commit])
    seed = dropout.seed_generator.state
    saved = sdp.allgather_object(seed.numpy().tolist())
    assert saved[0] != saved[1]
    # By all ranks; and by a world of rank 0 alone, which has its first rank's.
    folder = FOLDER / "seeds0" if sdp.rank() == 0 else FOLDER / "none"
    for group, expected in ((smdp.world(), saved[sdp.rank()]), (smdp.world().split(sdp.rank()), saved[0])):
        seed.assign(tf.zeros_like(seed))
        again = callbacks.CommitStateCallback(folder, group=group)
        assert again.restore(net) == (1 if group.size == 2 or sdp.rank() == 0 else 0)
        assert seed.numpy().tolist() == (expected if group.size == 2 or sdp.rank() == 0 else [0, 0])


def check_optimizer_with_a_branch() -> None:
    """AutoGraph still translates an apply() of the user's."""

    class Upwards(keras.optimizers.SGD):
        def apply(self, grads, trainable_variables=None):
            if tf.reduce_sum(grads[0]) > 0:
                grads = [-grad for grad in grads]
            return super().apply(grads, trainable_variables)

    optimizer = sdp.DistributedOptimizer(Upwards(1.0))
    variable = tf.Variable([1.0])
    optimizer.build([variable])

    @tf.function
    def step():
        optimizer.apply([tf.constant([2.0 * sdp.rank() + 1.0])], [variable])

    step()
    assert variable.numpy().tolist() == [1.0 + sdp.size()]


def check_tape_and_optimizer() -> None:
    """Both reduce: the user hears of it, once, and not where only one does or their groups differ."""
    net = model()
    inputs, targets = map(tf.constant, data(16))
    alone = smdp.world().split(sdp.rank())

    def warned(wrap, is_graph: bool) -> list[str]:
        optimizer = sdp.DistributedOptimizer(keras.optimizers.SGD(0.1))

        def step() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((net(inputs) - targets) ** 2)
            gradients = wrap(tape).gradient(loss, net.trainable_variables)
            optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))

        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            (tf.function(step, autograph=False) if is_graph else step)()
        return [str(one.message) for one in seen if "[smdp]" in str(one.message)]

    for is_graph in (False, True):
        assert warned(lambda tape: tape, is_graph) == []
        assert warned(lambda tape: sdp.DistributedGradientTape(tape, group=alone), is_graph) == []
        (text,) = warned(sdp.DistributedGradientTape, is_graph)
        assert f"rank {sdp.rank()} of 2" in text and "kernel is reduced a second time" in text


def check_iterators() -> None:
    optimizer, variable = sdp.DistributedOptimizer(keras.optimizers.SGD(1.0)), tf.Variable([1.0])
    optimizer.apply(iter([tf.constant([1.0])]), iter([variable]))
    assert variable.numpy().tolist() == [0.0]

    @tf.function
    def step():
        optimizer.apply(iter([tf.constant([2.0])]), iter([variable]))

    step()
    assert variable.numpy().tolist() == [-2.0]


def check_forms_of_gradients() -> None:
    """All that Keras takes for one."""
    rank = sdp.rank()
    for gradient in (
        np.full(2, rank, np.float32),
        np.full(2, rank, np.float64),
        [float(rank)] * 2,
        keras.Variable([float(rank)] * 2),
        tf.Variable([float(rank)] * 2),
    ):
        optimizer, variable = sdp.DistributedOptimizer(keras.optimizers.SGD(1.0)), keras.Variable([1.0, 1.0])
        optimizer.apply_gradients([(gradient, variable)])
        assert variable.numpy().tolist() == [0.5, 0.5], gradient


def check_mixed_precision() -> None:
    """A step that is infinite on one rank is skipped on all."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    with pytest.raises(ValueError, match="LossScaleOptimizer"):
        sdp.DistributedOptimizer(keras.optimizers.SGD(0.1))
    scaled = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
    net = model()
    net.compile(sdp.DistributedOptimizer(scaled), "mse")
    x, y = data()
    net.train_on_batch(mine(x), mine(y))
    before = weights(net)
    bad = np.full_like(mine(x), np.inf if sdp.rank() == 1 else 1.0)
    net.train_on_batch(bad, mine(y))
    assert all(np.array_equal(a, b) for a, b in zip(weights(net), before, strict=True))
    net.train_on_batch(mine(x), mine(y))
    after = weights(net)
    assert not np.array_equal(after[0], before[0])
    bits = [a.tobytes() for a in after]
    assert all(other == bits for other in sdp.allgather_object(bits))


def check_callbacks() -> None:
    x, y = data()
    net = model(seed=1 + sdp.rank())
    net.compile(sdp.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    seen: list[float] = []

    class Watch(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(logs["loss"])

    warmup = callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2, verbose=1)
    later = callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 0.5, start_epoch=3)
    scheduled = model(seed=1)
    optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5))
    scheduled.compile(keras.optimizers.SGD(lambda: 0.1), "mse")
    with pytest.raises(ValueError, match=r"WarmupCallback sets .* follows function"):
        scheduled.fit(x, y, verbose=0, callbacks=[warmup])
    for one in (optimizer, keras.optimizers.LossScaleOptimizer(optimizer)):
        scheduled.compile(one, "mse")
        with pytest.raises(ValueError, match=r"WarmupCallback sets .* follows ExponentialDecay"):
            scheduled.fit(x, y, verbose=0, callbacks=[warmup])
    best = FOLDER / f"best{sdp.rank()}.keras"
    commit = callbacks.CommitStateCallback(FOLDER / f"state{sdp.rank()}")
    assert commit.restore(net) == 0
    history = net.fit(
        mine(x),
        mine(y) + sdp.rank(),
        batch_size=16 // sdp.size(),
        epochs=4,
        verbose=0,
        validation_data=(x, y),
        callbacks=[
            callbacks.BroadcastGlobalVariablesCallback(0),
            callbacks.MetricAverageCallback(),
            warmup,
            later,
            callbacks.BestModelCheckpoint(best),
            commit,
            Watch(),
        ],
    )
    assert all(other == seen for other in sdp.allgather_object(seen))
    rates = history.history["lr"]
    # Two epochs of four batches, from half the rate.
    np.testing.assert_allclose(rates, [0.05 + 0.05 * 4 / 8, 0.1, 0.1, 0.05], rtol=1e-6)
    assert best.exists() == (sdp.rank() == 0)
    bits = [w.tobytes() for w in weights(net)]
    assert all(other == bits for other in sdp.allgather_object(bits))
    # Everything is lost but rank 0's checkpoints.
    again = model(seed=9)
    again.compile(sdp.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    assert callbacks.CommitStateCallback(FOLDER / f"state{sdp.rank()}").restore(again) == 4
    assert [w.tobytes() for w in weights(again)] == bits
    if sdp.rank() == 0:
        net.save(FOLDER / "model.keras")
        net.export(FOLDER / "exported")
        x_test = x[:4]
        np.save(FOLDER / "expected.npy", net.predict(x_test, verbose=0))
        np.save(FOLDER / "x.npy", x_test)
        load = f"""
import sys
sys.modules["smdp"] = None  # not installed
import numpy as np, tensorflow as tf
folder = {str(FOLDER)!r}
x, expected = np.load(folder + "/x.npy"), np.load(folder + "/expected.npy")
net = tf.keras.models.load_model(folder + "/model.keras")
assert type(net.optimizer).__name__ == "SGD"
np.testing.assert_allclose(net.predict(x, verbose=0), expected, rtol=1e-5)
net.fit(x, expected, verbose=0)
served = tf.saved_model.load(folder + "/exported")
np.testing.assert_allclose(served.serve(x), expected, rtol=1e-5)
"""
        subprocess.run([sys.executable, "-c", load], check=True, timeout=60)
    sdp.barrier()


def check_data_of_unknown_length() -> None:
    """The end of the data stops a step in the middle, before its gradients."""
    x, y = data()

    def batches():
        for i in range(0, len(x), 16):
            yield mine(x[i : i + 16], 16), mine(y[i : i + 16], 16)

    specs = (tf.TensorSpec((None, 8)), tf.TensorSpec((None, 3)))
    net = model()
    net.compile(sdp.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    net.fit(tf.data.Dataset.from_generator(batches, output_signature=specs), epochs=3, verbose=0)
    alone = model()
    alone.compile(keras.optimizers.SGD(0.1), "mse")
    alone.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    for a, b in zip(weights(net), weights(alone), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def check_loss_scale_outside() -> None:
    net = model()
    inner = sdp.DistributedOptimizer(keras.optimizers.SGD(0.1))
    net.compile(keras.mixed_precision.LossScaleOptimizer(inner), "mse")
    x, y = data()
    with pytest.raises(ValueError, match="Distribute the outer one"):
        net.train_on_batch(mine(x), mine(y))
    with pytest.raises(ValueError, match="gradient_accumulation_steps"):
        sdp.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2)


def check_batch_norm() -> None:
    x, y = data(32)
    x = x * 3 + 1
    plain, synced = model(norm=keras.layers.BatchNormalization), model(norm=sdp.SyncBatchNormalization)
    for net, rows, targets in ((plain, x, y), (synced, mine(x, 32), mine(y, 32))):
        optimizer = keras.optimizers.SGD(0.1)
        for _ in range(5):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(net(rows, training=True) - targets))
            if net is synced:
                tape = sdp.DistributedGradientTape(tape)
            gradients = tape.gradient(loss, net.trainable_variables)
            optimizer.apply(gradients, net.trainable_variables)
    for a, b in zip(weights(synced), weights(plain), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    # Sequences of unequal length: the masked steps do not count.
    inputs = np.random.default_rng(0).normal(size=(4, 5, 2)).astype("float32")
    mask = np.arange(5) < np.array([[5], [2], [3], [1]])
    reference, ours = keras.layers.BatchNormalization(), sdp.SyncBatchNormalization()
    expected = reference(inputs, training=True, mask=mask)
    part = slice(2 * sdp.rank(), 2 * sdp.rank() + 2)
    got = ours(inputs[part], training=True, mask=mask[part])
    np.testing.assert_allclose(got, expected[part], atol=1e-4)
    # A saved model has Keras' own layer.
    again = keras.layers.deserialize(keras.layers.serialize(ours))
    assert type(again) is keras.layers.BatchNormalization


def check_keras_2() -> None:
    with pytest.raises(TypeError, match="With Keras 2, use DistributedGradientTape"):
        sdp.DistributedOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(TypeError, match="is a layer of Keras 3"):
        sdp.SyncBatchNormalization()
    x, y = data()
    net = model(seed=1 + sdp.rank())
    net.compile(keras.optimizers.SGD(0.0), "mse")
    commit = callbacks.CommitStateCallback(FOLDER / f"state{sdp.rank()}")
    assert commit.restore(net) == 0
    history = net.fit(
        mine(x),
        mine(y) + sdp.rank(),
        epochs=2,
        verbose=0,
        callbacks=[callbacks.BroadcastGlobalVariablesCallback(0), callbacks.MetricAverageCallback(), commit],
    )
    again = model(seed=9)
    again.compile(keras.optimizers.SGD(0.0), "mse")
    assert callbacks.CommitStateCallback(FOLDER / f"state{sdp.rank()}").restore(again) == 2
    assert [w.tobytes() for w in weights(again)] == [w.tobytes() for w in weights(net)]
    assert len(set(sdp.allgather_object(history.history["loss"][1]))) == 1
    bits = [w.tobytes() for w in weights(net)]
    assert all(other == bits for other in sdp.allgather_object(bits))

    other = model(seed=1)
    other.compile(keras.optimizers.SGD(0.1), "mse")
    best = callbacks.BestModelCheckpoint(FOLDER / f"best{sdp.rank()}.keras", monitor="loss")
    warm = callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2)
    late = callbacks.LearningRateScheduleCallback(0.1, 0.5, start_epoch=2)
    rates = other.fit(mine(x), mine(y), epochs=3, verbose=0, callbacks=[warm, late, best]).history["lr"]
    assert rates[0] < rates[1] and rates[2] == pytest.approx(0.05), rates
    if sdp.rank() == 0:
        keras.models.load_model(FOLDER / "best0.keras")
    assert not (FOLDER / "best1.keras").exists()

    def old() -> tuple[keras.Model, callbacks.CommitStateCallback]:
        net = model(seed=1 + sdp.rank())
        net.compile(keras.optimizers.legacy.Adam(0.01), "mse")
        return net, callbacks.CommitStateCallback(FOLDER / "old")

    net, commit = old()
    assert commit.restore(net) == 0
    net.fit(mine(x), mine(y), verbose=0, callbacks=[commit])
    again, commit = old()
    assert commit.restore(again) == 1
    state = [value.tobytes() for value in (net if sdp.rank() == 0 else again).optimizer.get_weights()]
    assert state == [value.tobytes() for value in again.optimizer.get_weights()]
    assert len(state) > 2 and sdp.allgather_object(state)[0] == state


@needs_keras_3
def test_fit() -> None:
    run(check_fit, 2)
    run(check_dropout_stays_each_ranks_own, 2)


@needs_keras_3
def test_training_apart() -> None:
    run(check_training_apart, 2)


def test_names() -> None:
    run(check_names, 2)


@needs_keras_3
def test_forms_of_gradients() -> None:
    run(check_forms_of_gradients, 2)


@needs_keras_3
def test_other_backends_of_keras_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = keras.optimizers.SGD()
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")  # which is not installed
    for what in (lambda: sdp.DistributedOptimizer(optimizer), sdp.SyncBatchNormalization):
        with pytest.raises(ValueError, match=r"with the TensorFlow backend, but its backend is 'jax'"):
            what()


@needs_keras_3
def test_tape_and_optimizer() -> None:
    run(check_tape_and_optimizer, 2)


@needs_keras_3
def test_iterators() -> None:
    run(check_iterators, 2)


@needs_keras_3
def test_mixed_precision() -> None:
    run(check_mixed_precision, 2)


@needs_keras_3
def test_callbacks() -> None:
    run(check_callbacks, 2)


@needs_keras_3
def test_data_of_unknown_length() -> None:
    run(check_data_of_unknown_length, 2)


@needs_keras_3
def test_loss_scale_outside() -> None:
    run(check_loss_scale_outside, 2)


@needs_keras_3
def test_batch_norm() -> None:
    run(check_batch_norm, 2)


@pytest.mark.skipif(is_keras_3, reason="needs Keras 2")
def test_keras_2() -> None:
    run(check_keras_2, 2)
