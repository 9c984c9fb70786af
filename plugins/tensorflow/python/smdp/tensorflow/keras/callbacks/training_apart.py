"""A warning if each rank would train a separate model."""

from __future__ import annotations

import warnings
from typing import Any

import tensorflow as tf

import smdp


def warn_of_training_apart(model: Any, members: smdp.Group) -> None:
    """Warns about an optimizer that applies only this rank's gradients, such as that of a loaded model.

    There is no warning for a user's own train_step, which may reduce the gradients itself.
    """
    optimizer = getattr(model, "optimizer", None)
    if members.size == 1 or optimizer is None or hasattr(optimizer, "_smdp_reduction"):
        return
    for name in ("train_step", "make_train_function"):
        if name in vars(model) or getattr(type(model), name) is not getattr(tf.keras.Model, name):
            return
    warnings.warn(
        f"[smdp] rank {members.rank} of {members.size}: fit() has the optimizer {type(optimizer).__name__},"
        " which is not distributed, so each rank trains a separate model. Before fit(), call"
        " smdp.tensorflow.DistributedOptimizer(model.optimizer), also after load_model(), or load the model"
        " with smdp.tensorflow.keras.load_model(). With Keras 2, use DistributedGradientTape in train_step.",
        RuntimeWarning,
        stacklevel=1,  # a fixed place, so Python shows the warning once for all callbacks
    )
