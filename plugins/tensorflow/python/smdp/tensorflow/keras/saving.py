"""Models that were saved, to be trained on."""

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
    """Loads a Keras 3 model and makes its optimizer, if it was saved with one, apply all ranks' gradients.

    Args:
        filepath: What Keras' load_model takes.
        custom_optimizers: Classes of optimizers that Keras does not know.
        custom_objects: Other classes and functions by name; those go before the optimizers.
        compression: What float32 gradients travel as between hosts.
        legacy_opts: Not used; any optimizer of Keras is loaded.

    Raises:
        TypeError: tf.keras is Keras 2.
    """
    known = {cls.__name__: cls for cls in custom_optimizers or ()} | (custom_objects or {})
    model = tf.keras.models.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is not None:
        sdp.DistributedOptimizer(model.optimizer, compression=compression)
    return model
