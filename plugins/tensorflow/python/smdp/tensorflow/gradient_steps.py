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
from smdp.tensorflow.reduce_op import ReduceOp

BUCKET_CAP_MB = 25.0
# Below this a callback for each mean would cost more than it gains.
_SMALL_BYTES = 256 << 10

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
    """The sum of each gradient over all ranks, times ``factor``; 0 stands for the mean, which is cheapest.

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
        means = list(held)
        for indices in _together(gradients):
            some = ops.smdp_gradient_means(
                held=[held[i] for i in indices], step=step, steps=steps, indices=indices
            )
            for index, mean in zip(indices, some, strict=True):
                means[index] = mean
        return means


def _together(gradients: Sequence[Any]) -> list[list[int]]:
    """Which means come from one op: each large one alone, all small ones together."""
    small = [i for i, g in enumerate(gradients) if g.shape.num_elements() * g.dtype.size < _SMALL_BYTES]
    return [[i] for i in range(len(gradients)) if i not in set(small)] + ([small] if small else [])


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


def factor_of(op: ReduceOp, scale: float, size: int) -> float:
    """The factor for reduce_gradients of an operation, SUM or AVERAGE, and a scale on top."""
    if op is ReduceOp.AVERAGE:
        return 0.0 if scale == 1.0 else scale / size
    return scale


def forget_all() -> None:
    """Closes all reducers: functions traced with them raise from now on."""
    _steps.clear()


@tf.RegisterGradient("SmdpGradientMeans")
def _means_gradient(op: Any, *gradients: Any) -> Any:
    for (_, _, factor, *_), (group, steps) in _steps.items():
        if steps.id == op.get_attr("steps"):
            totals = [ops.smdp_allreduce(tensor=g, group=group.core.id, op=0) for g in gradients]
            return [*(total * tf.cast(factor or 1 / group.size, total.dtype) for total in totals), None]
    raise LookupError("[smdp] the gradients that this op was made for are gone.")


@tf.RegisterGradient("SmdpGradientReady")
def _ready_gradient(op: Any, gradient: Any) -> Any:
    return gradient, None
