"""Keras callbacks for training on several ranks."""

from __future__ import annotations

from smdp.tensorflow.keras.callbacks.best_model import BestModelCheckpoint
from smdp.tensorflow.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
from smdp.tensorflow.keras.callbacks.commit_state import CommitStateCallback
from smdp.tensorflow.keras.callbacks.learning_rate import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)
from smdp.tensorflow.keras.callbacks.metric_average import MetricAverageCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "CommitStateCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

# Shows the module from which users import them.
for _callback in (
    BestModelCheckpoint,
    BroadcastGlobalVariablesCallback,
    CommitStateCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
):
    _callback.__module__ = __name__
