"""Gradients of a step through the gradient reducer, each sent as soon as backward has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from smdp import _core
from smdp._buffers import DType
from smdp.tensorflow.compression import Compressor
from smdp.tensorflow.library import ops

BUCKET_CAP_MB = 25.0

# What a reducer is for: group, options, names, shapes and dtypes, and which of a trace's calls with these.
_Key = tuple[Any, ...]
_steps: dict[_Key, tuple[Any, _core.GradientSteps]] = {}
_calls: WeakKeyDictionary[Any, Counter[_Key]] = WeakKeyDictionary()


def can_reduce(tensor: Any) -> bool:
    """Whether the reducer takes this gradient: dense, of a float dtype, its shape known while tracing."""
    return (
        not isinstance(tensor, tf.IndexedSlices)
        and tensor.shape.is_fully_defined()
        and (tensor.dtype.is_floating or tensor.dtype.is_complex)
        and tensor.dtype.size > 1
    )


def reduce_gradients(
    gradients: Sequence[Any],
    names: Sequence[str],
    *,
    group: Any,
    compression: Compressor,
    factor: float,
    bucket_cap_mb: float = BUCKET_CAP_MB,
) -> list[Any]:
    """The sum of each gradient over all ranks, times ``factor``.

    All ranks must call it with the same shapes and dtypes in the same order; the names are for messages.
    """
    if not gradients:
        return []
    steps = _find_or_make(gradients, names, group, compression, factor, bucket_cap_mb).id
    with tf.device("CPU:0"):
        step = ops.smdp_gradient_begin(steps=steps)
        held = [
            ops.smdp_gradient_ready(gradient=gradient, step=step, steps=steps, index=index)
            for index, gradient in enumerate(gradients)
        ]
        # Also where nobody uses the result of one: without it the step would never end.
        with tf.control_dependencies(held):
            ops.smdp_gradient_finish(step=step, steps=steps)
        return [
            ops.smdp_gradient_mean(held=tensor, step=step, steps=steps, index=index)
            for index, tensor in enumerate(held)
        ]


def _find_or_make(
    gradients: Sequence[Any],
    names: Sequence[str],
    group: Any,
    compression: Compressor,
    factor: float,
    bucket_cap_mb: float,
) -> _core.GradientSteps:
    tensors = tuple((name, tuple(g.shape), g.dtype.name) for name, g in zip(names, gradients, strict=True))
    key: _Key = (group.core.id, compression.name, factor, bucket_cap_mb, tensors)
    key = (*key, _turn(key))
    if key not in _steps:
        described = [
            (
                name,
                gradient.shape.num_elements(),
                int(DType[gradient.dtype.name.upper()]),
                str(list(gradient.shape)),
            )
            for name, gradient in zip(names, gradients, strict=True)
        ]
        # The group is kept with it: a number of a group that is gone would lead nowhere.
        _steps[key] = (
            group,
            _core.GradientSteps(
                group.core, described, compression.name, int(bucket_cap_mb * 1024 * 1024), factor
            ),
        )
    return _steps[key][1]


def _turn(key: _Key) -> int:
    """How many calls with this key the trace has had: two in one graph may run at once and need two reducers.

    A retrace counts anew, so it finds those of the first trace. Eager calls run one after the other.
    """
    if tf.executing_eagerly():
        return 0
    graph = tf.compat.v1.get_default_graph()
    while isinstance(getattr(graph, "outer_graph", None), type(graph)):
        graph = graph.outer_graph
    calls = _calls.setdefault(graph, Counter())
    calls[key] += 1
    return calls[key] - 1


def rescale_residuals(factor: float) -> None:
    """Tells every reducer that the loss scale was multiplied by this."""
    for _, steps in _steps.values():
        steps.rescale(factor)


@tf.RegisterGradient("SmdpGradientMean")
def _mean_gradient(op: Any, gradient: Any) -> Any:
    for (_, _, factor, *_), (group, steps) in _steps.items():
        if steps.id == op.get_attr("steps"):
            total = ops.smdp_allreduce(tensor=gradient, group=group.core.id, op=0)
            return total * tf.cast(factor or 1 / group.size, total.dtype), None
    raise LookupError("[smdp] the gradients that this op was made for are gone.")


@tf.RegisterGradient("SmdpGradientReady")
def _ready_gradient(op: Any, gradient: Any) -> Any:
    return gradient, None
