"""Reduces the gradients of a step with the gradient reducer, each as soon as backward has computed it."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

import smdp
from smdp import _core
from smdp._buffers import DType
from smdp.tensorflow import python_ops
from smdp.tensorflow.collectives import all_reduce
from smdp.tensorflow.compression import Compressor
from smdp.tensorflow.groups import Token
from smdp.tensorflow.library import is_native, ops
from smdp.tensorflow.naming import count_in, graph_of_session
from smdp.tensorflow.reduce_op import ReduceOp

BUCKET_CAP_MB = 25.0
# Below this size, an op for each gradient and a callback for each mean would cost more than they gain.
_SMALL_BYTES = 256 << 10
# What to do if the models are the same but their gradients differ.
_CURES = {
    "(no gradient": "unconnected_gradients=tf.UnconnectedGradients.ZERO gives zeros if there is no gradient.",
    "IndexedSlices of": "sparse_as_dense=True makes slices dense on all ranks.",
}
# Maximum number of reducers of eager code for the same variables; the oldest is removed.
_MOST_EAGER = 8


@dataclass(eq=False)
class _Steps:
    """A reducer and the token that orders its steps."""

    core: Any  # _core.GradientSteps; without the op library, a _core.GradientReducer
    token: Token


@dataclass(frozen=True)
class _Key:
    """Identifies a reducer. A variable's serial is unique and never reused; a tensor's serial is 0."""

    group: int
    serials: tuple[int, ...]
    is_eager: bool  # reducers of traced functions are kept, because the functions hold their numbers
    described: tuple[tuple[int, int, str], ...]
    options: tuple[Any, ...]
    # The number of the call in a graph of TensorFlow 1, where two calls may run in any order.
    site: int

    def has_same_owner(self, other: _Key) -> bool:
        return (self.group, self.is_eager, set(self.serials)) == (
            other.group,
            other.is_eager,
            set(other.serials),
        )


_steps: dict[_Key, _Steps] = {}
# Eager code runs its ops in order and needs only one token. TensorFlow never frees the kernel of a token.
_eager_token = Token()
# By id(). An id identifies a variable only during its life, which ends at different times on the ranks.
_serials: dict[int, int] = {}
_next_serial = itertools.count(1)


def can_reduce(tensor: Any) -> bool:
    """Returns whether the reducer supports a gradient: dense, float, and with a static shape."""
    return (
        tensor is not None
        and not isinstance(tensor, tf.IndexedSlices)
        and tensor.shape.is_fully_defined()
        and (tensor.dtype.is_floating or tensor.dtype.is_complex)
        and tensor.dtype.size > 1
    )


def reduce_gradients(
    gradients: Sequence[Any],
    sources: Sequence[Any],
    names: Sequence[str],
    *,
    group: Any,
    compression: Compressor,
    factor: float,
    buffer_bytes: int,
    otherwise: str = "",
) -> list[Any]:
    """Returns the sum of each gradient over all ranks times ``factor``.

    The factor 0 stands for the mean, which is the cheapest. Gradients that the reducer does not support (see
    can_reduce) are returned unchanged. Nevertheless, ranks compare a new list as a whole: the kinds, shapes
    and dtypes, in order. Names are used in messages. If ``otherwise`` is set, no gradient is reduced here; it
    describes how the caller reduces them, and ranks compare it too.
    """
    if not gradients:
        return []
    found = _find_or_make(gradients, sources, names, group, compression, factor, buffer_bytes, otherwise)
    number, scale = group.core.id, factor or 1 / group.size
    own = [i for i, gradient in enumerate(gradients) if can_reduce(gradient)]
    results = list(gradients)
    if not own or otherwise:
        return results
    if not is_native:
        means = _through_python(found, own, [gradients[i] for i in own], number, scale)
        for index, mean in zip(own, means, strict=True):
            results[index] = mean
        return results
    # In the order in which backward computes them: TensorFlow numbers tensors as they are created.
    own.sort(key=lambda index: getattr(gradients[index], "_id", -index))
    with tf.device("CPU:0"):
        # The step begins after the first gradient, so an earlier failure leaves no step open.
        with tf.control_dependencies([gradients[own[0]]]):
            step = ops.smdp_gradient_begin(token=found.token.handle, steps=found.core.id)
        held = []
        for indices in _in_row(gradients, own):
            several = [gradients[i] for i in indices]
            held += ops.smdp_gradient_ready(gradients=several, step=step, indices=indices)
        ended = ops.smdp_gradient_finish(token=found.token.handle, step=step, held=held)
        for places in _together([gradients[i] for i in own]):
            indices = [own[place] for place in places]
            means = ops.smdp_gradient_means(
                held=[held[place] for place in places],
                step=ended,
                factor=scale,
                indices=indices,
                group=number,
            )
            for index, mean in zip(indices, means, strict=True):
                results[index] = mean
    return results


def _through_python(
    found: _Steps, indices: Sequence[int], gradients: Sequence[Any], number: int, scale: float
) -> Any:
    kept = weakref.ref(found)  # a traced function must not keep alive what forget_all() closes

    def core() -> Any:
        steps = kept()
        if steps is None:
            raise LookupError(
                "[smdp] the gradients that this op was created for are gone: smdp was shut down, or their"
                " variables were deleted."
            )
        return steps.core

    @tf.custom_gradient
    def call(*values: Any) -> Any:
        means = python_ops.reduce_gradients(core, found.token.handle, indices, values)
        return means, lambda *upper: _sums(number, scale, upper)

    with tf.device("CPU:0"):
        return call(*gradients)


def _bytes(gradient: Any) -> int:
    return int(gradient.shape.num_elements() * gradient.dtype.size)


def _in_row(gradients: Sequence[Any], own: Sequence[int]) -> list[list[int]]:
    """Groups gradients by op: each large one alone, and small ones that backward computes in a row."""
    rows: list[list[int]] = []
    room = -1  # so that the first gradient begins a row, even if it is empty
    for index in own:
        size = _bytes(gradients[index])
        if size <= room:
            rows[-1].append(index)
        else:
            rows.append([index])
            room = _SMALL_BYTES
        room -= size
    return rows


def _together(gradients: Sequence[Any]) -> list[list[int]]:
    """Groups means by op: each large one alone, all small ones together."""
    small = [i for i, gradient in enumerate(gradients) if _bytes(gradient) < _SMALL_BYTES]
    return [[i] for i in range(len(gradients)) if i not in set(small)] + ([small] if small else [])


def _describe(gradient: Any, source: Any, otherwise: str) -> tuple[int, int, str]:
    """Returns elements, dtype and shape for the core. A gradient without a shape has the variable's."""
    of = f" of a variable {source.shape}" if hasattr(source, "assign") else ""
    if gradient is None:
        return 0, int(DType.FLOAT32), f" (no gradient{of})"
    if isinstance(gradient, tf.IndexedSlices):
        row = gradient.values.shape[1:]  # without dense_shape, the shape of the slices is unknown
        shape = "" if row.rank is None else row.as_list()
        return 0, int(DType.FLOAT32), f" ({otherwise}IndexedSlices of {gradient.dtype.name}{shape}{of})"
    if otherwise or not can_reduce(gradient):
        shape = "" if gradient.shape.rank is None else gradient.shape.as_list()
        return 0, int(DType.FLOAT32), f" ({otherwise}{gradient.dtype.name}{shape})"
    dtype = DType[gradient.dtype.name.upper()]
    return gradient.shape.num_elements(), int(dtype), str(list(gradient.shape))


def _serial(source: Any) -> int:
    """Returns the serial of a variable, or 0 for a tensor, which differs in every step."""
    if not hasattr(source, "assign"):
        return 0
    if id(source) not in _serials:
        serial = _serials[id(source)] = next(_next_serial)
        # Not at exit: closing reducers then would hide from the other ranks why this rank leaves.
        weakref.finalize(source, _forget, id(source), serial).atexit = False
    return _serials[id(source)]


def _forget(identity: int, serial: int) -> None:
    """Removes the reducers of a deleted variable, which can never be used again."""
    _serials.pop(identity, None)
    for key in list(_steps):
        if serial in key.serials:
            _steps.pop(key, None)


def _find_or_make(
    gradients: Sequence[Any],
    sources: Sequence[Any],
    names: Sequence[str],
    group: Any,
    compression: Compressor,
    factor: float,
    buffer_bytes: int,
    otherwise: str,
) -> _Steps:
    described = tuple(_describe(g, s, otherwise) for g, s in zip(gradients, sources, strict=True))
    options = compression.name, buffer_bytes, factor
    serials = tuple(_serial(source) for source in sources)
    key = _Key(group.core.id, serials, tf.executing_eagerly(), described, options, 0)
    graph = graph_of_session()
    if graph is not None:
        key = replace(key, site=count_in(graph, key))
    found = _steps.pop(key, None)
    is_new = found is None
    if found is None:
        token = _eager_token if key.is_eager else Token()
        found = _Steps(_make_core(group, names, described, options, _change(key, names)), token)
    _steps[key] = found  # moves it to the end
    if is_new and key.is_eager:
        # All ranks make the same calls, so they close the same reducer. None uses it once all have the new
        # one.
        same = [other for other in list(_steps) if other.has_same_owner(key)]
        for oldest in same[:-_MOST_EAGER]:
            _steps.pop(oldest, None)
    return found


def _change(key: _Key, names: Sequence[str]) -> tuple[str, list[str]]:
    """Returns how these gradients differ from earlier ones of the same variables, and the earlier groups.

    Errors use it if other ranks still use an earlier list: they and this rank then wait for each other.
    """
    owner = key.group, key.is_eager, key.serials
    known = [
        (one, steps) for one, steps in list(_steps.items()) if (one.group, one.is_eager, one.serials) == owner
    ]
    # If Python runs ahead of TensorFlow, this rank may still be about to run what the others wait for.
    if not known or not tf.config.experimental.get_synchronous_execution():
        return "", []
    changes = [
        [
            f"the gradient of {name!r} was {_text(old)} and is {_text(new)}"
            for name, serial, new, old in zip(names, key.serials, key.described, one.described, strict=True)
            if serial and new != old  # tensors differ every time
        ]
        for one, _ in known
    ]
    least = min((change for change in changes if change), key=len, default=[])
    return (least[0], [steps.core.group_name for _, steps in known]) if least else ("", [])


def _text(described: tuple[int, int, str]) -> str:
    _, dtype, shape = described
    if shape.startswith(" ("):  # the core does not reduce it, so its dtype has no meaning
        return shape[2:-1]
    return DType(dtype).name.lower() + shape


def _make_core(
    group: Any,
    names: Sequence[str],
    described: Sequence[tuple[int, int, str]],
    options: tuple[Any, ...],
    change: tuple[str, list[str]],
) -> Any:
    listed = [(name, *one) for name, one in zip(names, described, strict=True)]
    compression, buffer_bytes, factor = options
    purpose, replaced = change
    try:
        if is_native:
            return _core.GradientSteps(
                group.core, listed, compression, buffer_bytes, factor, purpose, replaced
            )
        return _core.GradientReducer(
            group.core,
            listed,
            compression,
            buffer_bytes,
            factor,
            compares_names=False,  # TensorFlow's names depend on what else a process has built
            purpose=purpose,
            replaced=replaced,
        )
    except smdp.MismatchError as error:
        # The text occurs once: only one of the two ranks has such a gradient.
        cures = [cure for seen, cure in _CURES.items() if str(error).count(seen) == 1]
        if not cures:
            raise
        raise smdp.MismatchError(" ".join([str(error), *cures])) from None


def factor_of(op: ReduceOp, scale: float, size: int) -> float:
    """Returns the factor for reduce_gradients: SUM or AVERAGE, times a scale that is not 0."""
    if op is ReduceOp.AVERAGE:
        return 0.0 if scale == 1.0 else scale / size
    return scale


def forget_all() -> None:
    """Closes all reducers. Functions that were traced with them raise an error from now on."""
    _steps.clear()


def _sums(number: int, scale: Any, gradients: Sequence[Any]) -> list[Any]:
    """Returns the gradients of reduced gradients: scaled sums over all ranks."""
    with tf.device("CPU:0"):
        totals = [all_reduce(gradient, number, ReduceOp.SUM) for gradient in gradients]
    return [total * tf.cast(scale, total.dtype) for total in totals]


@tf.RegisterGradient("SmdpGradientMeans")
def _means_gradient(op: Any, *gradients: Any) -> Any:
    return [*_sums(op.get_attr("group"), op.inputs[-1], gradients), None, None]


@tf.RegisterGradient("SmdpGradientReady")
def _ready_gradient(op: Any, *gradients: Any) -> Any:
    return [*gradients, None]


tf.no_gradient("SmdpGradientFinish")
tf.no_gradient("SmdpGradientBegin")
