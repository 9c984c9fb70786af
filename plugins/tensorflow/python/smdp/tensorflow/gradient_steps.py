"""Gradients of a step through the gradient reducer, each sent as soon as backward has it."""

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
# Below this an op for each gradient, and a callback for each mean, would cost more than they gain.
_SMALL_BYTES = 256 << 10
# Where models are the same and their gradients differ.
_CURES = {
    "(no gradient": "unconnected_gradients=tf.UnconnectedGradients.ZERO gives zeros where there is none.",
    "IndexedSlices of": "sparse_as_dense=True makes slices dense on all ranks.",
}
# Reducers of eager code for the same variables with other shapes or factors: the oldest goes.
_MOST_EAGER = 8


@dataclass(eq=False)
class _Steps:
    """A reducer, and the token that orders its steps."""

    core: Any  # _core.GradientSteps; without the op library, a _core.GradientReducer
    token: Token


@dataclass(frozen=True)
class _Key:
    """What a reducer is made for: no two variables ever have the same serial; that of a tensor is 0."""

    group: int
    serials: tuple[int, ...]
    is_eager: bool  # traced functions hold numbers of reducers, so theirs stay
    described: tuple[tuple[int, int, str], ...]
    options: tuple[Any, ...]
    # The number of the call in a graph of TensorFlow 1, which may run two calls in any order.
    site: int

    def has_same_owner(self, other: _Key) -> bool:
        return (self.group, self.is_eager, set(self.serials)) == (
            other.group,
            other.is_eager,
            set(other.serials),
        )


_steps: dict[_Key, _Steps] = {}
# Eager code runs its ops in order; of a new token TensorFlow would keep a kernel for good.
_eager_token = Token()
# By id(), which names a variable only as long as it lives: at another time on every rank.
_serials: dict[int, int] = {}
_next_serial = itertools.count(1)


def can_reduce(tensor: Any) -> bool:
    """Whether the reducer takes this gradient: dense, of a float dtype, its shape known while tracing."""
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
    """The sum of each gradient over all ranks, times ``factor``; 0 stands for the mean, which is cheapest.

    What cannot be reduced this way, see can_reduce, comes back as it is; but the whole list is compared
    between the ranks when it is new: kinds, shapes and dtypes, in this order. Names are for messages.
    ``otherwise``: what is done with all of them instead, which is compared as well.
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
    # As backward makes them, whatever the order of the list: TensorFlow numbers tensors as they are made.
    own.sort(key=lambda index: getattr(gradients[index], "_id", -index))
    with tf.device("CPU:0"):
        # Behind the gradient that backward makes first: whatever fails before it leaves no step open.
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
    kept = weakref.ref(found)  # a traced function holds this, and must not keep what forget_all() closes

    def core() -> Any:
        steps = kept()
        if steps is None:
            raise LookupError(
                "[smdp] the gradients that this op was made for are gone: smdp was shut down, or their"
                " variables are gone."
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
    """Which gradients one op hands on: each large one, and small ones that backward makes in a row."""
    rows: list[list[int]] = []
    room = -1  # so that the first begins a row, also an empty one
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
    """Which means come from one op: each large one alone, all small ones together."""
    small = [i for i, gradient in enumerate(gradients) if _bytes(gradient) < _SMALL_BYTES]
    return [[i] for i in range(len(gradients)) if i not in set(small)] + ([small] if small else [])


def _describe(gradient: Any, source: Any, otherwise: str) -> tuple[int, int, str]:
    """Elements, dtype and shape as text, for the core; what has no shape of its own has the variable's."""
    of = f" of a variable {source.shape}" if hasattr(source, "assign") else ""
    if gradient is None:
        return 0, int(DType.FLOAT32), f" (no gradient{of})"
    if isinstance(gradient, tf.IndexedSlices):
        row = gradient.values.shape[1:]  # the slices' own shape is unknown without dense_shape
        shape = "" if row.rank is None else row.as_list()
        return 0, int(DType.FLOAT32), f" ({otherwise}IndexedSlices of {gradient.dtype.name}{shape}{of})"
    if otherwise or not can_reduce(gradient):
        shape = "" if gradient.shape.rank is None else gradient.shape.as_list()
        return 0, int(DType.FLOAT32), f" ({otherwise}{gradient.dtype.name}{shape})"
    dtype = DType[gradient.dtype.name.upper()]
    return gradient.shape.num_elements(), int(dtype), str(list(gradient.shape))


def _serial(source: Any) -> int:
    """Of a variable; a tensor is another one in every step."""
    if not hasattr(source, "assign"):
        return 0
    if id(source) not in _serials:
        serial = _serials[id(source)] = next(_next_serial)
        # At exit smdp tells the others why this rank leaves; closing reducers before would hide it.
        weakref.finalize(source, _forget, id(source), serial).atexit = False
    return _serials[id(source)]


def _forget(identity: int, serial: int) -> None:
    """With a variable go its reducers: nobody can ask for them again."""
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
    _steps[key] = found  # the last in order
    if is_new and key.is_eager:
        # Ranks make the same calls, so they close the same one, which none uses once all have made the new.
        same = [other for other in list(_steps) if other.has_same_owner(key)]
        for oldest in same[:-_MOST_EAGER]:
            _steps.pop(oldest, None)
    return found


def _change(key: _Key, names: Sequence[str]) -> tuple[str, list[str]]:
    """What is new since another list of these variables' gradients, and those lists' groups.

    For ranks that go on with one of them: they and this rank wait for each other.
    """
    owner = key.group, key.is_eager, key.serials
    known = [
        (one, steps) for one, steps in list(_steps.items()) if (one.group, one.is_eager, one.serials) == owner
    ]
    # Where Python runs ahead of TensorFlow, this rank may be about to do what the others wait for.
    if not known or not tf.config.experimental.get_synchronous_execution():
        return "", []
    changes = [
        [
            f"the gradient of {name!r} was {_text(old)} and is {_text(new)}"
            for name, serial, new, old in zip(names, key.serials, key.described, one.described, strict=True)
            if serial and new != old  # tensors are others each time
        ]
        for one, _ in known
    ]
    least = min((change for change in changes if change), key=len, default=[])
    return (least[0], [steps.core.group_name for _, steps in known]) if least else ("", [])


def _text(described: tuple[int, int, str]) -> str:
    _, dtype, shape = described
    if shape.startswith(" ("):  # which the core does not reduce, so the dtype stands for nothing
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
            compares_names=False,  # TensorFlow's depend on what else a process has built
            purpose=purpose,
            replaced=replaced,
        )
    except smdp.MismatchError as error:
        # One rank has it, and the other does not.
        cures = [cure for seen, cure in _CURES.items() if str(error).count(seen) == 1]
        if not cures:
            raise
        raise smdp.MismatchError(" ".join([str(error), *cures])) from None


def factor_of(op: ReduceOp, scale: float, size: int) -> float:
    """The factor for reduce_gradients of an operation, SUM or AVERAGE, and a scale, not 0, on top."""
    if op is ReduceOp.AVERAGE:
        return 0.0 if scale == 1.0 else scale / size
    return scale


def forget_all() -> None:
    """Closes all reducers: functions traced with them raise from now on."""
    _steps.clear()


def _sums(number: int, scale: Any, gradients: Sequence[Any]) -> list[Any]:
    """For the gradients of these gradients."""
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
