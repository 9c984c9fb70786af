"""TensorFlow 1's ways: variables of a graph, optimizers of tf.compat.v1, hooks of estimators."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import smdp.tensorflow as sdp

_NOT_NEEDED = (
    "average_aggregated_gradients",
    "gradient_predivide_factor",
    "groups",
    "num_groups",
    "scale_local_gradients",
)


def broadcast_global_variables(root_rank: int) -> Any:
    """Give all global variables of the graph the root's values; in eager code there are none.

    Raises:
        RuntimeError: In eager code, where TensorFlow keeps no list of variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "[smdp] broadcast_global_variables() works on a graph; in eager code use"
            " broadcast_variables(model.variables, root_rank)."
        )
    return sdp.broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives the root's values to all ranks when a session begins."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        self._root_rank = root_rank
        self._op: Any = None

    def begin(self) -> None:
        """Add the op, once per graph."""
        if self._op is None or self._op.graph is not tf.compat.v1.get_default_graph():
            self._op = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run it."""
        session.run(self._op)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = sdp.Compression.none,
    sparse_as_dense: bool = False,
    op: Any = sdp.ReduceOp.AVERAGE,
    bucket_cap_mb: float = 25,
    **options: Any,
) -> Any:
    """Make an optimizer, of tf.compat.v1 or Keras 3, average gradients over all ranks.

    Raises:
        ValueError: It is one of tf.compat.v1 and distributed already, or there are options it cannot take.
    """
    # Horovod's, which say what smdp does anyway, or how it is done: the result is the same.
    for known in _NOT_NEEDED:
        options.pop(known, None)
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return sdp.DistributedOptimizer(
            optimizer,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            op=op,
            bucket_cap_mb=bucket_cap_mb,
            **options,
        )
    more = {name: value for name, value in options.items() if value not in (None, 0, 1, 1.0)}
    if more or hasattr(optimizer, "smdp_is_distributed"):
        reason = f"takes no {', '.join(more)}" if more else "is distributed already"
        raise ValueError(f"[smdp] DistributedOptimizer: an optimizer of tf.compat.v1 {reason}.")
    optimizer.smdp_is_distributed = True
    compute = optimizer.compute_gradients

    def compute_gradients(*args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        pairs = compute(*args, **kwargs)
        gradients = [gradient for gradient, _ in pairs]
        if sparse_as_dense:
            gradients = [tf.convert_to_tensor(each) if _is_sparse(each) else each for each in gradients]
        known = [index for index, gradient in enumerate(gradients) if gradient is not None]
        reduced = sdp.grouped_allreduce([gradients[i] for i in known], op=op, compression=compression)
        for index, gradient in zip(known, reduced, strict=True):
            gradients[index] = gradient
        return [(gradient, variable) for gradient, (_, variable) in zip(gradients, pairs, strict=True)]

    optimizer.compute_gradients = compute_gradients
    return optimizer


def _is_sparse(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices)
