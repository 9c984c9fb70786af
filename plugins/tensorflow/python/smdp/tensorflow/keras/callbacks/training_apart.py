"""A warning where each rank would train a model of its own."""

from __future__ import annotations

import warnings
from typing import Any

import tensorflow as tf

import smdp


def warn_of_training_apart(model: Any, members: smdp.Group) -> None:
    """Warns of an optimizer that applies this rank's gradients alone, as one of a loaded model does.

    A train_step of the user's own may reduce them itself.
    """
    optimizer = getattr(model, "optimizer", None)
    if members.size == 1 or optimizer is None or hasattr(optimizer, "_smdp_reduction"):
        return
    for name in ("train_step", "make_train_function"):
        if name in vars(model) or getattr(type(model), name) is not getattr(tf.keras.Model, name):
            return
    warnings.warn(
        f"[smdp] rank {members.rank} of {members.size}: fit() has the optimizer {type(optimizer).__name__},"
        " which is not distributed, so that each rank trains a model of its own. Before fit() call"
        " smdp.tensorflow.DistributedOptimizer(model.optimizer), also after load_model(), or load by"
        " smdp.tensorflow.keras.load_model(). With Keras 2 use DistributedGradientTape in a train_step.",
        RuntimeWarning,
        stacklevel=1,  # one place, so Python shows it once, whichever callbacks there are
    )
