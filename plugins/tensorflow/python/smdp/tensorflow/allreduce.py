"""allreduce with the arguments of SMDDP and of Horovod."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from smdp._arguments import integer
from smdp.tensorflow.arguments import bytes_of, list_of, scale_of
from smdp.tensorflow.collectives import reduce_tensor, scaled
from smdp.tensorflow.compression import Compression, Compressor, compressor
from smdp.tensorflow.gradient_steps import BUCKET_CAP_MB, can_reduce, factor_of, reduce_gradients
from smdp.tensorflow.groups import group_of, tensor_of
from smdp.tensorflow.integers import widened
from smdp.tensorflow.library import is_native
from smdp.tensorflow.lists import check_same, join_small
from smdp.tensorflow.naming import place_in_list, runs_in_any_order
from smdp.tensorflow.reduce_op import ReduceOp, reduce_op
from smdp.tensorflow.sparse import reduce_slices
from smdp.tensorflow.tracing import no_autograph

_HOROVODS = inspect.Signature(
    [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for name in (
            "tensor",
            "average",
            "device_dense",
            "device_sparse",
            "compression",
            "op",
            "prescale_factor",
            "postscale_factor",
            "name",
            "process_set",
            "ignore_name_scope",
            "group",
        )
    ]
)


def _by_position_as_horovod(function: Callable[..., Any]) -> Callable[..., Any]:
    """Also accepts Horovod's positions: its third argument is a device, SMDDP's is a number of gradients."""

    @functools.wraps(function)
    def taken(*arguments: Any, **options: Any) -> Any:
        if len(arguments) > 2 and isinstance(arguments[2], str):
            return function(**_HOROVODS.bind_partial(*arguments, **options).arguments)
        return function(*arguments, **options)

    return taken


@no_autograph
@_by_position_as_horovod
def allreduce(
    grad: Any = None,
    param_index: int | bool | None = None,
    num_params: int | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    tensor: Any = None,
    average: bool | None = None,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    ignore_name_scope: bool = False,
    group: Any = None,
    process_set: Any = None,
) -> Any:
    """Reduces a tensor over all ranks.

    Args:
        grad: Tensor or IndexedSlices; its shape and dtype must be the same on all ranks. Another name for it
            is ``tensor``.
        param_index: SMDDP's index of the gradient. It is only checked against ``num_params``. A bool is taken
            as Horovod's ``average``.
        num_params: SMDDP's number of gradients.
        compression: Compression.fp16 or Compression.bf16 sends a float tensor in 16 bits. It may also be a
            class or object with ``compress(tensor)``, which returns a tensor and a context, and
            ``decompress(tensor, context)``.
        op: A ReduceOp; None means AVERAGE.
        prescale_factor: Factor that multiplies the input.
        postscale_factor: Factor that multiplies the result.
        tensor: Another name for ``grad``.
        average: Horovod's older form of ``op``: True means AVERAGE, False means SUM.
        name: Optional name of the call, which must be the same on all ranks. In a graph of TensorFlow 1,
            calls with the same name belong together.
        device_dense: Not used.
        device_sparse: Not used.
        ignore_name_scope: In a graph of TensorFlow 1, whether to leave the name scope out of the name.
        group: The ranks that take part; all by default.
        process_set: Another name for ``group``.

    Returns:
        The reduced tensor or IndexedSlices, with the dtype of the input.

    Raises:
        TypeError: There is no tensor, its dtype is not supported, or a factor is not a number.
        ValueError: An argument has a value that is not allowed.
    """
    value = grad if grad is not None else tensor
    if value is None:
        raise TypeError("[smdp] allreduce() needs a tensor as its first argument.")
    if isinstance(param_index, bool | np.bool_):
        average, param_index = bool(param_index), None
    if param_index is not None and num_params is not None:
        index, count = integer("param_index", param_index), integer("num_params", num_params)
        if not 0 <= index < count:
            raise ValueError(f"[smdp] allreduce: param_index is {index}; allowed: 0 to {count - 1}.")
    kind = _kind(op, average)
    before, after = _scales(prescale_factor, postscale_factor)
    members = group_of(group, process_set)
    if isinstance(value, tf.IndexedSlices):
        return _scaled_slices(reduce_slices(_scaled_slices(value, before), kind, members, name), after)
    value = tensor_of(value, "allreduce")
    wire = compressor(compression)
    wide = widened(value, kind)
    small, dtype = wire.compress(scaled(wide, before))
    sum_ = reduce_tensor(small, kind, members, name, ignore_name_scope)
    whole = wire.decompress(sum_, dtype)
    if not wire.is_in_core:
        whole = tf.ensure_shape(whole, value.shape)
    reduced = scaled(whole, after)
    return reduced if wide is value else tf.cast(reduced, value.dtype)


@no_autograph
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
    ignore_name_scope: bool = False,
    name: str | None = None,
    *,
    group: Any = None,
) -> list[Any]:
    """Reduces several tensors at once; arguments as in allreduce.

    With ``Compression.int8`` and ``topk``, the tensors are not compressed, because what these leave out
    cannot be assigned to a later call.

    Raises:
        MismatchError: In eager code, the lists of the ranks differ. It is raised on all ranks.
    """
    kind = _kind(op, average)
    before, after = _scales(prescale_factor, postscale_factor)
    members = group_of(group, process_set)
    wire = _without_memory(compressor(compression))
    tensors = list_of("grouped_allreduce", tensors, "Pass a list of tensors.")
    values = [t if isinstance(t, tf.IndexedSlices) else tensor_of(t, "grouped_allreduce") for t in tensors]
    if tf.executing_eagerly():
        # Without a reducer, which takes long to create: every call may have different shapes.
        check_same("grouped_allreduce", "tensor", values, members, "Pass the same list on all ranks.")
        single = functools.partial(
            allreduce,
            compression=wire,
            op=kind,
            prescale_factor=before,
            postscale_factor=after,
            group=members,
        )
        # A user's compressor gets every tensor by itself, because its result may depend on the shape.
        return join_small(values, single) if wire.is_in_core else [single(value) for value in values]
    return reduce_all(
        values,
        [None] * len(values),
        [f"tensor {i}" for i in range(len(values))],
        op=kind,
        compression=wire,
        prescale_factor=before,
        postscale_factor=after,
        group=members,
    )


def reduce_all(
    values: Sequence[Any],
    sources: Sequence[Any],
    names: Sequence[str],
    *,
    op: ReduceOp,
    compression: Compressor,
    prescale_factor: float,
    postscale_factor: float,
    group: Any,
    buffer_bytes: int = bytes_of(BUCKET_CAP_MB),
) -> list[Any]:
    """Reduces values over all ranks: with the reducer those that it supports, the others one by one.

    An entry that is None stays None.
    """
    # The reducer takes the factor 0 for the mean, so it cannot multiply by 0.
    factor = prescale_factor * postscale_factor
    by_reducer = op in (ReduceOp.SUM, ReduceOp.AVERAGE) and factor != 0 and compression.is_in_core
    # All ranks must run the steps of a reducer in the same order.
    by_reducer = by_reducer and not runs_in_any_order()
    own = "" if compression.is_in_core else f"{compression.name} of "
    results = reduce_gradients(
        values,
        sources,
        names,
        group=group,
        compression=compression if by_reducer else Compression.none,
        factor=factor_of(op, factor, group.size) if by_reducer else 1.0,
        buffer_bytes=buffer_bytes,
        otherwise="" if by_reducer else f"{op.name} times {factor:g} of {own}",
    )
    # A call into Python blocks one of TensorFlow's threads until all ranks are in it, so calls run one by
    # one.
    reduced = [one for one, value in zip(results, values, strict=True) if one is not value]
    before = [] if is_native else reduced
    for index, value in enumerate(values):
        if value is None or (by_reducer and can_reduce(value)):
            continue
        tensor_of(value.values if isinstance(value, tf.IndexedSlices) else value, "allreduce", names[index])
        with tf.control_dependencies(before):
            results[index] = allreduce(
                value,
                name=place_in_list(index),
                compression=_without_memory(compression),
                op=op,
                prescale_factor=prescale_factor,
                postscale_factor=postscale_factor,
                group=group,
            )
        before = tf.nest.flatten(results[index], expand_composites=True)
    return results


@no_autograph
def oob_allreduce(
    tensor: Any,
    compression: Any = Compression.none,
    op: Any = None,
    *,
    group: Any = None,
    process_set: Any = None,
) -> Any:
    """Reduces a loss or a metric: a tensor, a number or a list of numbers.

    If ``op`` is None, it is AVERAGE. The mean of Python integers is a float. The mean of an integer tensor is
    an integer tensor, rounded toward zero.
    """
    value = tensor_of(tensor, "oob_allreduce")
    is_number = not hasattr(tensor, "dtype") or isinstance(tensor, np.generic)
    is_mean = reduce_op(op) is ReduceOp.AVERAGE
    is_whole = value.dtype.is_integer or value.dtype == tf.bool
    if is_mean and is_whole and not tf.is_tensor(tensor) and is_number:
        value = tf.cast(value, tf.float32)
    return allreduce(value, compression=compression, op=op, group=group, process_set=process_set)


def _scales(prescale_factor: Any, postscale_factor: Any) -> tuple[float, float]:
    return scale_of("prescale_factor", prescale_factor), scale_of("postscale_factor", postscale_factor)


def _kind(op: Any, average: Any) -> ReduceOp:
    if average is None:
        return reduce_op(op)
    if op is not None:
        raise ValueError("[smdp] pass op or average, not both.")
    if not isinstance(average, numbers.Integral | np.bool_):
        raise TypeError(f"[smdp] average is {average!r}; allowed: True, False, None.")
    return ReduceOp.AVERAGE if average else ReduceOp.SUM


def _without_memory(compression: Compressor) -> Compressor:
    return Compression.none if compression.keeps_errors else compression


def _scaled_slices(slices: Any, factor: float) -> Any:
    return tf.IndexedSlices(scaled(slices.values, factor), slices.indices, slices.dense_shape)
