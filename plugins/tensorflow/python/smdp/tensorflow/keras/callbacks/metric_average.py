"""A callback that averages the metrics of an epoch over all ranks."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
import tensorflow as tf

import smdp
from smdp.tensorflow.allreduce import oob_allreduce
from smdp.tensorflow.groups import group_of
from smdp.tensorflow.keras.callbacks.training_apart import warn_of_training_apart
from smdp.tensorflow.objects import allgather_object


class MetricAverageCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Replaces the metrics of an epoch by their mean over all ranks.

    Put it before callbacks that read the metrics.

    Raises:
        MismatchError: At the end of an epoch, the ranks have different metrics.
    """

    def __init__(self, device: str = "", *, group: Any = None) -> None:
        super().__init__()
        self._group = group

    def on_train_begin(self, logs: Any = None) -> None:
        """Warns about an optimizer that is not distributed."""
        warn_of_training_apart(self.model, group_of(self._group))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Averages all metrics with one message."""
        logs = {} if logs is None else logs
        names = sorted(name for name, value in logs.items() if _is_number(value))
        members = group_of(self._group)
        for rank, theirs in enumerate(allgather_object(names, group=members)):
            if theirs != names:
                raise smdp.MismatchError(
                    f"[smdp] rank {members.rank} of {members.size}: MetricAverageCallback has the metrics"
                    f" {', '.join(names) or 'none'}, but rank {rank} has {', '.join(theirs) or 'none'}."
                    " Compile with the same metrics, and pass validation data on all ranks or on none."
                )
        if not names:
            return
        values = tf.constant([float(logs[name]) for name in names], tf.float64)
        for name, value in zip(names, oob_allreduce(values, group=members).numpy(), strict=True):
            logs[name] = float(value)


def _is_number(value: Any) -> bool:
    return np.ndim(value) == 0 and (tf.is_tensor(value) or isinstance(value, (numbers.Real, np.number)))
