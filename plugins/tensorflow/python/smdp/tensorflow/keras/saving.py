"""Loading of saved models to continue training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

import smdp.tensorflow as sdp


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type[Any]] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = sdp.Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a Keras 3 model and makes its optimizer, if it was saved with one, average gradients.

    Args:
        filepath: Path for Keras's load_model().
        custom_optimizers: Optimizer classes that are not part of Keras.
        custom_objects: Other classes and functions by name. They take precedence over custom_optimizers.
        compression: Format in which float32 gradients are sent between hosts; see DistributedGradientTape.
        legacy_opts: Not used; any Keras optimizer is loaded.

    Raises:
        TypeError: tf.keras is Keras 2.
    """
    known = {cls.__name__: cls for cls in custom_optimizers or ()} | (custom_objects or {})
    model = tf.keras.models.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is not None:
        sdp.DistributedOptimizer(model.optimizer, compression=compression)
    return model
