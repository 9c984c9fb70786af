"""Trains a Keras CNN on scikit-learn's digits on several ranks, by a loop of one's own and by model.fit.

    smdp run -n 2 docs/examples/tensorflow_digits.py

With --checkpoints DIRECTORY rank 0 saves after every epoch, and a job that was killed goes on from there.
Without, it checks what it shows: accuracy, equal variables on all ranks, and the losses of one process.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import smdp.tensorflow as sdp

GLOBAL_BATCH = 64


def data() -> list[np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).reshape(-1, 8, 8, 1).astype("float32")
    return train_test_split(images, labels.astype("int64"), test_size=360, random_state=0, stratify=labels)


def build() -> tf.keras.Model:
    tf.keras.utils.set_random_seed(7)
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def batches(count: int, epochs: int) -> list[np.ndarray]:
    """Indices of every global batch; all ranks draw the same."""
    random = np.random.default_rng(1)
    orders = (random.permutation(count)[: count // GLOBAL_BATCH * GLOBAL_BATCH] for _ in range(epochs))
    return [batch for order in orders for batch in order.reshape(-1, GLOBAL_BATCH)]


def resume(directory: str, model: tf.keras.Model, optimizer: tf.keras.optimizers.Optimizer) -> tuple:
    """Rank 0's newest checkpoint on all ranks: who saves, and the number of batches it has seen."""
    optimizer.build(model.trainable_variables)
    seen = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, seen=seen)
    saver = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=2)
    if sdp.rank() == 0 and saver.latest_checkpoint:
        checkpoint.restore(saver.latest_checkpoint).expect_partial()
    variables = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    sdp.broadcast_variables([*model.weights, *variables, seen], root_rank=0)
    return saver, seen


def train(
    model: tf.keras.Model,
    images: np.ndarray,
    labels: np.ndarray,
    epochs: int,
    *,
    alone: bool,
    checkpoints: str = "",
) -> list[float]:
    """A loop of one's own; `alone` trains on whole batches, without other ranks."""
    optimizer = tf.keras.optimizers.Adam(2e-3)
    saver, seen = resume(checkpoints, model, optimizer) if checkpoints else (None, 0)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        if alone:
            gradients = tape.gradient(loss, model.trainable_variables)
        else:
            tape = sdp.DistributedGradientTape(tape)
            gradients = tape.gradient(loss, model.trainable_variables)
            loss = sdp.oob_allreduce(loss)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    rank, size = (0, 1) if alone else (sdp.rank(), sdp.size())
    losses = []
    for number, batch in enumerate(batches(len(labels), epochs)):
        if alone and number == 20:
            break
        if number < int(seen):
            continue
        part = batch[rank::size]
        losses.append(step(tf.constant(images[part]), tf.constant(labels[part])))
        if number == 0 and not alone:
            sdp.broadcast_variables(model.weights, root_rank=0)
            variables = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
            sdp.broadcast_variables(variables, root_rank=0)
        if saver and sdp.rank() == 0 and (number + 1) % (len(labels) // GLOBAL_BATCH) == 0:
            seen.assign(number + 1)
            saver.save()
            print(f"saved after {number + 1} batches", flush=True)
    return [float(loss) for loss in losses]


class Losses(tf.keras.callbacks.Callback):
    """The loss of every batch, where Keras tells the mean since the epoch began; batches are alike."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self.total = 0.0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        before, self.total = self.total, (batch + 1) * float(logs["loss"])
        self.seen.append(self.total - before)


def fit(
    model: tf.keras.Model, images: np.ndarray, labels: np.ndarray, epochs: int, *, alone: bool
) -> list[float]:
    """The same by model.fit, which takes the batches in the order of the data; the first 20 losses."""
    from smdp.tensorflow.keras import callbacks

    rank, size = (0, 1) if alone else (sdp.rank(), sdp.size())
    optimizer = tf.keras.optimizers.Adam(2e-3)
    model.compile(optimizer if alone else sdp.DistributedOptimizer(optimizer), loss_of, metrics=["accuracy"])
    mine = np.arange(rank, len(labels) // GLOBAL_BATCH * GLOBAL_BATCH, size)
    losses = Losses()
    others = [callbacks.BroadcastGlobalVariablesCallback(0), callbacks.MetricAverageCallback()]
    model.fit(
        images[mine],
        labels[mine],
        batch_size=GLOBAL_BATCH // size,
        epochs=epochs,
        shuffle=False,
        callbacks=[losses] if alone else [losses, *others],
        verbose=0,
    )
    seen = losses.seen[:20]
    return seen if alone else np.mean(sdp.allgather_object(seen), axis=0).tolist()


def accuracy(model: tf.keras.Model, images: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(np.argmax(model(images).numpy(), axis=1) == labels))


def check_same_everywhere(model: tf.keras.Model) -> None:
    bits = [tf.convert_to_tensor(variable).numpy().tobytes() for variable in model.weights]
    assert all(other == bits for other in sdp.allgather_object(bits)), "ranks hold different variables"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--checkpoints", default="", help="where rank 0 saves, and a job goes on from")
    options = parser.parse_args()
    sdp.init()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    x, x_test, y, y_test = data()

    model = build()
    losses = train(model, x, y, options.epochs, alone=False, checkpoints=options.checkpoints)
    check_same_everywhere(model)
    if options.checkpoints:
        if sdp.rank() == 0:
            print(f"last losses: {losses[-3:]}", flush=True)
        return
    reference = train(build(), x, y, options.epochs, alone=True)
    apart = max(abs(a - b) for a, b in zip(losses, reference))
    assert apart < 1e-5, f"losses differ from those of one process by {apart}"
    reached = accuracy(model, x_test, y_test)
    if sdp.rank() == 0:
        print(f"loop on {sdp.size()} ranks: accuracy {reached:.4f}", flush=True)
        print(f"20 losses within {apart:.1e} of one process", flush=True)
    assert reached >= 0.97

    if not hasattr(tf.keras, "ops"):
        return  # DistributedOptimizer needs Keras 3
    model = build()
    losses = fit(model, x, y, options.epochs, alone=False)
    apart = max(abs(a - b) for a, b in zip(losses, fit(build(), x, y, 1, alone=True)))
    assert apart < 1e-5, f"losses of model.fit differ from those of one process by {apart}"
    check_same_everywhere(model)
    reached = accuracy(model, x_test, y_test)
    if sdp.rank() == 0:
        print(f"model.fit: accuracy {reached:.4f}, 20 losses within {apart:.1e} of one process", flush=True)
    assert reached >= 0.97


if __name__ == "__main__":
    main()
