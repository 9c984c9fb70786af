"""Keras on spot machines: SIGTERM to one rank in the middle of an epoch, exit code 75, and the same end."""

from __future__ import annotations

import os
import random
import re
import signal
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow_spawn import run

import smdp
import smdp.tensorflow as sdp
from smdp.tensorflow.keras import callbacks
from smdp.tensorflow.library import is_keras_3

pytestmark = pytest.mark.timeout(900)
keras = tf.keras
EPOCHS, BATCHES = 3, 6


class Signalling(keras.callbacks.Callback):
    """SIGTERM to one rank while a batch is trained."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if [self.epoch, batch, sdp.rank()] == [int(word) for word in os.environ.get("AT", "-1").split()]:
            os.kill(os.getpid(), signal.SIGTERM)


def train() -> None:
    """As docs/preemption.md has it."""
    keras.utils.set_random_seed(1 + sdp.rank())
    x = tf.random.stateless_uniform([BATCHES * 4, 8], seed=[1, sdp.rank()])
    y = tf.random.stateless_uniform([BATCHES * 4, 2], seed=[2, sdp.rank()])
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    layers = [keras.layers.Dense(16, "tanh"), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    model = keras.Sequential([keras.layers.Input((8,)), *layers])
    model.compile(sdp.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", jit_compile=False)
    commit = callbacks.CommitStateCallback(Path(os.environ["KEPT"]))
    options = {"verbose": 0, "callbacks": [Signalling(), commit]}
    epoch = commit.restore(model)
    print("begins at", epoch, commit.initial_batch)
    if commit.initial_batch:  # the rest of an epoch that was cut short
        model.fit(data.skip(commit.initial_batch), initial_epoch=epoch, epochs=epoch + 1, **options)
        epoch += 1
    model.fit(data, initial_epoch=epoch, epochs=EPOCHS, **options)
    assert commit.initial_batch == 0
    print("result", b"".join(weight.tobytes() for weight in model.get_weights()).hex())
    sdp.shutdown()


def results(outputs: list[str]) -> set[str]:
    return {re.findall(r"result (\w+)", output)[0] for output in outputs}


@pytest.mark.skipif(not is_keras_3, reason="DistributedOptimizer needs Keras 3")
@pytest.mark.parametrize("is_last", [False, True], ids=["in an epoch", "at its end"])
def test_fit_goes_on_to_the_same_weights(is_last: bool, tmp_path: Path) -> None:
    # Drawn here: the processes of pytest-xdist must agree on the names of tests.
    batch = BATCHES - 2 if is_last else random.randrange(BATCHES - 2)
    whole = results(run(train, env={"KEPT": str(tmp_path / "whole")}, timeout=600))
    assert len(whole) == 1
    kept = {"KEPT": str(tmp_path / "kept")}
    victim = random.randrange(2)
    outputs = run(train, env={**kept, "AT": f"1 {batch} {victim}"}, exits={0: 75, 1: 75}, timeout=600)
    told = [output for output in outputs if "all ranks stop" in output]
    assert len(told) == 1 and f"ranks [{victim}] of 2 received SIGTERM" in told[0], outputs
    resumed = run(train, env=kept, timeout=600)
    assert results(resumed) == whole
    starts = {re.findall(r"begins at (\d+ \d+)", output)[0] for output in resumed}
    expected = {f"1 {batch + 1}", f"1 {batch + 2}"} if batch + 2 < BATCHES else {"1 5", "2 0"}
    assert len(starts) == 1 and starts <= expected


def loop() -> None:
    """A step of one's own, in a tf.function."""
    variable = tf.Variable([1.0])

    @tf.function
    def step():
        with sdp.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(variable * float(sdp.rank() + 1))
        variable.assign_sub(0.1 * tape.gradient(loss, [variable])[0])

    for number in range(100):
        step()
        if number == 10 and sdp.rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        smdp.exit_if_preempted(lambda: print("saved at", number))  # noqa: B023 - called at once


def test_a_loop_of_ones_own() -> None:
    outputs = run(loop, exits={0: 75, 1: 75}, timeout=600)
    assert all("saved at 11\n" in output for output in outputs)
