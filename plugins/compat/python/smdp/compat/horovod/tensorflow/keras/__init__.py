"""`horovod.tensorflow.keras`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

import smdp.compat.horovod.tensorflow as hvd
from smdp.compat.horovod.refusals import no_attribute
from smdp.compat.horovod.tensorflow import *  # noqa: F403
from smdp.compat.horovod.tensorflow.keras.collectives import allgather as allgather  # type: ignore[assignment]
from smdp.compat.horovod.tensorflow.keras.collectives import allreduce as allreduce
from smdp.compat.horovod.tensorflow.keras.collectives import broadcast as broadcast  # type: ignore[assignment]
from smdp.compat.horovod.tensorflow.keras.collectives import reducescatter as reducescatter  # type: ignore[assignment]
from smdp.tensorflow import Compression
from smdp.tensorflow.keras import callbacks as callbacks


def DistributedOptimizer(  # type: ignore[no-redef]
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = hvd.Average,
    **options: Any,
) -> Any:
    """Make an optimizer average gradients: horovod.tensorflow's, with Keras' order of arguments."""
    return hvd.DistributedOptimizer(
        optimizer, compression=compression, sparse_as_dense=sparse_as_dense, op=op, **options
    )


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type[Any]] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a Keras model and make its optimizer, if it was saved with one, average gradients.

    Args:
        filepath: What Keras' load_model takes.
        custom_optimizers: Classes of optimizers that Keras does not know.
        custom_objects: Other classes and functions by name; those go before the optimizers.
        compression: What float32 gradients travel as between hosts.
        legacy_opts: Not used; any optimizer of Keras is loaded.
    """
    known = {cls.__name__: cls for cls in custom_optimizers or ()} | (custom_objects or {})
    model = tf.keras.models.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model


def __getattr__(name: str) -> Any:
    no_attribute("horovod.tensorflow.keras", name)
