"""Callbacks that set the learning rate by epoch, and warm it up for several ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from smdp._arguments import number
from smdp._stdout import write_line
from smdp.tensorflow.groups import group_of


class LearningRateScheduleCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to ``initial_lr * multiplier(epoch)`` from start_epoch on, until end_epoch.

    Args:
        initial_lr: The learning rate that is multiplied.
        multiplier: A number, or a function of the epoch that returns one.
        start_epoch: The first epoch in which the callback sets the rate.
        end_epoch: The first epoch in which it no longer does; None means never.
        staircase: Whether the rate changes only at the start of epochs. Otherwise it changes with every
            batch, and the epoch is a fraction.
        momentum_correction: Not used, because in Keras 3 the momentum is a constant of the traced step.
        steps_per_epoch: Number of batches per epoch. By default, fit() provides it if it is known.

    Raises:
        TypeError: An argument is not a number.
        ValueError: steps_per_epoch is not above 0.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: float | None = None,
    ) -> None:
        super().__init__()
        self._initial = number("initial_lr", initial_lr)
        constant = 1.0 if callable(multiplier) else number("multiplier", multiplier)
        self._multiplier = multiplier if callable(multiplier) else lambda epoch: constant
        self._start = number("start_epoch", start_epoch)
        self._end = None if end_epoch is None else number("end_epoch", end_epoch)
        self._staircase = staircase
        self._steps = None if steps_per_epoch is None else number("steps_per_epoch", steps_per_epoch)
        if self._steps is not None and not self._steps > 0:  # also rejects nan
            raise ValueError(f"[smdp] steps_per_epoch is {steps_per_epoch}; it must be above 0.")
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Determines the number of batches per epoch.

        Raises:
            ValueError: The number is needed but not known, or the optimizer has its own schedule.
        """
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        rate = getattr(optimizer, "_learning_rate", None)
        is_schedule = isinstance(rate, tf.keras.optimizers.schedules.LearningRateSchedule)
        if is_schedule or (callable(rate) and not hasattr(rate, "assign")):
            raise ValueError(
                f"[smdp] {type(self).__name__} sets the optimizer's learning rate, which follows"
                f" {type(rate).__name__}. Pass the optimizer a number, or remove this callback."
            )
        if self._steps is None:
            self._steps = self.params.get("steps")
        if not self._staircase and not self._steps:
            raise ValueError(
                f"[smdp] {type(self).__name__} changes the rate with every batch, but fit() does not know"
                " how many batches an epoch has. Pass steps_per_epoch=... to the callback."
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Sets the rate for the epoch."""
        self._epoch = epoch
        self._set(float(epoch))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the rate for the batch."""
        if not self._staircase and self._steps:
            self._set(self._epoch + batch / self._steps)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the rate to the metrics."""
        if logs is not None:
            logs["lr"] = float(tf.convert_to_tensor(self.model.optimizer.learning_rate))

    def _set(self, epoch: float) -> None:
        if epoch < self._start or (self._end is not None and epoch >= self._end):
            return
        self.model.optimizer.learning_rate = self._initial * self._multiplier(epoch)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Increases the learning rate from ``initial_lr / size`` to ``initial_lr`` over the first epochs.

    Args:
        initial_lr: The final learning rate, usually that of a single process times the number of ranks.
        warmup_epochs: Number of epochs of the warm-up.
        momentum_correction: Not used.
        steps_per_epoch: Number of batches per epoch. By default, fit() provides it if it is known.
        verbose: If 1, rank 0 prints a line when the warm-up ends.
        group: The ranks that train the model; all by default.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: float | None = None,
        verbose: int = 0,
        *,
        group: Any = None,
    ) -> None:
        epochs = number("warmup_epochs", warmup_epochs)
        if not 0 <= epochs < math.inf:  # also rejects nan
            raise ValueError(f"[smdp] warmup_epochs is {epochs}; it must be at least 0, and finite.")
        self._members = group_of(group)
        size = self._members.size

        def multiplier(epoch: float) -> float:
            # One batch ahead, so that the last batch of the warm-up has the full rate.
            reached = min(1.0, (epoch + 1.0 / (self._steps or 1)) / epochs) if epochs else 1.0
            return (1.0 + reached * (size - 1)) / size

        super().__init__(
            initial_lr,
            multiplier,
            0,
            math.ceil(epochs),
            False,
            momentum_correction,
            steps_per_epoch,
        )
        self._verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Prints a line when the warm-up ends."""
        super().on_epoch_end(epoch, logs)
        if self._end is not None and epoch == self._end - 1 and self._verbose and self._members.rank == 0:
            write_line(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._initial}.")
