"""A callback that saves the state of training, so that a restarted job can resume."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import smdp
from smdp._arguments import integer
from smdp.preemption import can_watch, leave
from smdp.tensorflow.arguments import check_path
from smdp.tensorflow.collectives import allgather
from smdp.tensorflow.groups import group_of
from smdp.tensorflow.keras.callbacks.training_apart import warn_of_training_apart
from smdp.tensorflow.keras.callbacks.variables import optimizer_variables, seeds_of, shared_variables
from smdp.tensorflow.objects import broadcast_object
from smdp.tensorflow.variables import broadcast_variables


class CommitStateCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Saves the model and optimizer on rank 0 after every epoch, to resume after a restart.

    All ranks need this callback, because rank 0 also saves the dropout seeds of every rank. Pass
    ``initial_epoch=callback.restore(model)`` to fit(). All ranks then start with the newest checkpoint, or
    with rank 0's values if there is none. After a rank receives SIGTERM, all ranks finish the same batch,
    rank 0 saves, and all exit with code 75 to ask for a restart. ``initial_batch`` then is the number of
    batches of the epoch that were done.

    Args:
        directory: Folder in which rank 0 keeps checkpoints (tf.train.Checkpoint).
        max_to_keep: Number of checkpoints to keep; None keeps all.
        group: The ranks that train the model; all by default.
        preemption: Whether to save on SIGTERM. It has no effect if the group does not contain all ranks.
    """

    def __init__(
        self,
        directory: str | Path,
        max_to_keep: int | None = 3,
        *,
        group: Any = None,
        preemption: bool = True,
    ) -> None:
        super().__init__()
        check_path("CommitStateCallback", directory)
        self._directory = str(directory)
        self._keep = max_to_keep if max_to_keep is None else integer("max_to_keep", max_to_keep)
        if self._keep is not None and self._keep < 1:
            raise ValueError(f"[smdp] max_to_keep is {self._keep}; it must be at least 1.")
        self._members = group_of(group)
        self._is_watching = preemption and self._members.size == smdp.size()
        self._writer: tf.train.CheckpointManager | None = None
        self._epoch = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._batch = tf.Variable(0, dtype=tf.int64, trainable=False)
        # By rank and position in the model. A checkpoint may have more ranks.
        self._seeds = tf.Variable(tf.zeros([0, 0, 0], tf.int64), trainable=False, shape=tf.TensorShape(None))
        self._running_epoch = 0
        self._initial_batch = 0

    @property
    def initial_batch(self) -> int:
        """Number of batches of the first epoch that were done before the restart; 0 after that epoch."""
        return self._initial_batch

    def _checkpoints(self, model: Any) -> tf.train.CheckpointManager:
        if self._writer is None:
            checkpoint = tf.train.Checkpoint(
                model=model,
                optimizer=model.optimizer,
                epoch=self._epoch,
                batch=self._batch,
                seeds=self._seeds,
            )
            self._writer = tf.train.CheckpointManager(checkpoint, self._directory, self._keep)
        return self._writer

    def restore(self, model: Any) -> int:
        """Loads the newest checkpoint on rank 0, sends it to all ranks, and returns the epoch to resume at.

        Raises:
            ValueError: The model has no variables yet, or no optimizer.
        """
        if not getattr(model, "built", False):
            raise ValueError("[smdp] restore() needs a model with variables: call model.build(...) first.")
        optimizer = getattr(model, "optimizer", None)
        if optimizer is None:
            raise ValueError(
                "[smdp] restore() needs a model with an optimizer: call model.compile(...) first."
            )
        if hasattr(optimizer, "_create_all_weights"):  # tf.keras.optimizers.legacy of Keras 2
            optimizer._create_all_weights(model.trainable_variables)
        elif not getattr(optimizer, "built", False):  # Keras 2 builds it itself
            optimizer.build(model.trainable_variables)
        if self._members.rank == 0:
            checkpoints = self._checkpoints(model)
            if checkpoints.latest_checkpoint:
                checkpoints.checkpoint.restore(checkpoints.latest_checkpoint).expect_partial()
        shared = [*shared_variables(model), *optimizer_variables(model.optimizer)]
        broadcast_variables(shared, 0, group=self._members)
        own = (int(self._epoch.numpy()), int(self._batch.numpy()), self._seeds.numpy())
        epoch, self._initial_batch, saved = broadcast_object(own, 0, group=self._members)
        seeds = seeds_of(model)
        # A rank that the saved job did not have keeps its own seeds.
        if self._members.rank < len(saved) and saved.shape[1] == len(seeds):
            for seed, value in zip(seeds, saved[self._members.rank], strict=True):
                seed.assign(tf.cast(value, seed.dtype))
        return int(epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts to watch for SIGTERM, and warns about an optimizer that is not distributed."""
        warn_of_training_apart(self.model, self._members)
        if not self._is_watching:
            return
        self._is_watching = can_watch()
        if self._is_watching:
            smdp.watch_preemption()
        else:
            warnings.warn(
                "[smdp] SIGTERM is not watched, because fit() does not run in the main thread; call"
                " smdp.watch_preemption() there first.",
                RuntimeWarning,
                stacklevel=2,
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Stores the number of the epoch."""
        self._running_epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Saves and exits if a rank has received SIGTERM."""
        if not self._is_watching or not smdp.preempted():
            return
        if batch + 1 == self.params.get("steps"):
            self._commit(self._running_epoch + 1, 0)
        else:
            self._commit(self._running_epoch, self._initial_batch + batch + 1)
        leave()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves the state after the epoch."""
        self._initial_batch = 0
        self._commit(epoch + 1, 0)

    def _commit(self, epoch: int, batch: int) -> None:
        seeds = seeds_of(self.model)
        if seeds:
            own = np.array([[np.asarray(seed) for seed in seeds]], np.int64)
            gathered = allgather(tf.constant(own), group=self._members)
        if self._members.rank == 0:
            if seeds:
                self._seeds.assign(gathered)
            self._epoch.assign(epoch)
            self._batch.assign(batch)
            self._checkpoints(self.model).save()
