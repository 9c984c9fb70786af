"""`horovod.tensorflow.keras`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from smdp.compat.horovod.refusals import no_attribute
from smdp.compat.horovod.tensorflow import *  # noqa: F403
from smdp.compat.horovod.tensorflow import DistributedOptimizer as DistributedOptimizer
from smdp.compat.horovod.tensorflow import broadcast_global_variables as broadcast_global_variables
from smdp.tensorflow.keras import callbacks as callbacks


def load_model(filepath: str, custom_objects: dict[str, Any] | None = None, **options: Any) -> Any:
    """Load a Keras model and make its optimizer average gradients; options are DistributedOptimizer's."""
    model = tf.keras.models.load_model(filepath, custom_objects)
    model.optimizer = DistributedOptimizer(model.optimizer, **options)
    return model


def __getattr__(name: str) -> Any:
    no_attribute("horovod.tensorflow.keras", name)
