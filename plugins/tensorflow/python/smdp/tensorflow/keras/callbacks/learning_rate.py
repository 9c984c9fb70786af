"""Learning rates that follow the epoch, and their warm-up to the number of ranks."""

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
        multiplier: A number or a function of the epoch.
        start_epoch: First epoch it works in.
        end_epoch: First epoch it does not work in any more.
        staircase: Change at the start of epochs only; otherwise every batch, with fractions of epochs.
        momentum_correction: Not used: Keras 3 makes the momentum a constant of the traced step.
        steps_per_epoch: Batches of an epoch; taken from fit() where it knows.

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
        if self._steps is not None and not self._steps > 0:  # nan as well
            raise ValueError(f"[smdp] steps_per_epoch is {steps_per_epoch}; it must be above 0.")
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds out how long an epoch is.

        Raises:
            ValueError: It is not known, and needed; or the optimizer follows a schedule of its own.
        """
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        rate = getattr(optimizer, "_learning_rate", None)
        is_schedule = isinstance(rate, tf.keras.optimizers.schedules.LearningRateSchedule)
        if is_schedule or (callable(rate) and not hasattr(rate, "assign")):
            raise ValueError(
                f"[smdp] {type(self).__name__} sets the optimizer's learning rate, which follows"
                f" {type(rate).__name__}. Give the optimizer a number, or leave out this callback."
            )
        if self._steps is None:
            self._steps = self.params.get("steps")
        if not self._staircase and not self._steps:
            raise ValueError(
                f"[smdp] {type(self).__name__} changes the rate every batch, and fit() does not know how many"
                " an epoch has: give it steps_per_epoch=..."
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Sets the rate of the epoch."""
        self._epoch = epoch
        self._set(float(epoch))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the rate of the batch."""
        if not self._staircase and self._steps:
            self._set(self._epoch + batch / self._steps)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Shows the rate among the metrics."""
        if logs is not None:
            logs["lr"] = float(tf.convert_to_tensor(self.model.optimizer.learning_rate))

    def _set(self, epoch: float) -> None:
        if epoch < self._start or (self._end is not None and epoch >= self._end):
            return
        self.model.optimizer.learning_rate = self._initial * self._multiplier(epoch)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from ``initial_lr / size`` to ``initial_lr`` over the first epochs.

    Args:
        initial_lr: The learning rate at the end, usually the one of one process times the number of ranks.
        warmup_epochs: How long it takes.
        momentum_correction: Not used.
        steps_per_epoch: Batches of an epoch; taken from fit() where it knows.
        verbose: 1: rank 0 says when it is over.
        group: Default: all ranks.
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
        if not 0 <= epochs < math.inf:  # nan as well
            raise ValueError(f"[smdp] warmup_epochs is {epochs}; it must be at least 0, and finite.")
        self._members = group_of(group)
        size = self._members.size

        def multiplier(epoch: float) -> float:
            # One batch further, so that the last one of the warm-up has the whole rate.
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
        """Tells that the warm-up is over."""
        super().on_epoch_end(epoch, logs)
        if self._end is not None and epoch == self._end - 1 and self._verbose and self._members.rank == 0:
            write_line(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._initial}.")
