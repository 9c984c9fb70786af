"""Support for TensorFlow 1: variables of a graph, optimizers of tf.compat.v1, hooks of estimators."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import smdp.tensorflow as sdp
from smdp.tensorflow.gradient_tape import Reduction

# Options of Horovod that do not change the result: smdp does the same anyway, or they only tune the speed.
_NOT_NEEDED = (
    "average_aggregated_gradients",
    "gradient_predivide_factor",
    "groups",
    "num_groups",
    "scale_local_gradients",
)


def broadcast_global_variables(root_rank: int) -> Any:
    """Sets all global variables of the graph to the root's values.

    Raises:
        RuntimeError: Called in eager code, where TensorFlow keeps no list of variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "[smdp] broadcast_global_variables() works only in a graph. In eager code, use"
            " broadcast_variables(model.weights, root_rank)."
        )
    return sdp.broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Sends the root's variables to all ranks when a session begins."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        self._root_rank = root_rank
        self._op: Any = None

    def begin(self) -> None:
        """Adds the broadcast op, once per graph."""
        if self._op is None or self._op.graph is not tf.compat.v1.get_default_graph():
            self._op = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the broadcast."""
        session.run(self._op)


def distribute(
    optimizer: Any,
    compression: Any,
    sparse_as_dense: bool,
    op: Any,
    *,
    bucket_cap_mb: float = 25,
    **options: Any,
) -> Any:
    """Makes an optimizer of tf.compat.v1 or Keras 3 average gradients over all ranks.

    Raises:
        ValueError: The optimizer is of tf.compat.v1 and is distributed already, or does not support one of
            the options.
    """
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return sdp.DistributedOptimizer(
            optimizer,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            op=op,
            bucket_cap_mb=bucket_cap_mb,
            **options,
        )
    more = {
        name: value
        for name, value in options.items()
        if name not in _NOT_NEEDED and value not in (None, 0, 1, 1.0)
    }
    if more or hasattr(optimizer, "smdp_is_distributed"):
        reason = f"does not take {', '.join(more)}" if more else "is distributed already"
        raise ValueError(f"[smdp] DistributedOptimizer: an optimizer of tf.compat.v1 {reason}.")
    optimizer.smdp_is_distributed = True
    reduction = Reduction(compression, op, sparse_as_dense, 1.0, 1.0, bucket_cap_mb, None, None)
    compute = optimizer.compute_gradients

    def compute_gradients(*args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        gradients, variables = zip(*compute(*args, **kwargs), strict=True)
        return list(zip(reduction(gradients, variables), variables, strict=True))

    optimizer.compute_gradients = compute_gradients
    return optimizer
