"""Collectives on tensors, in eager code and in graphs, with their gradients.

All ranks must make the same calls in the same order. Inside a ``tf.function``, TensorFlow keeps the order of
the program. In a graph of TensorFlow 1, ranks match calls by name instead.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from smdp.tensorflow.arguments import root_of, scale_of
from smdp.tensorflow.compression import Compression, compressor
from smdp.tensorflow.differentiation import gradient_of
from smdp.tensorflow.groups import by_id, group_of, tensor_of
from smdp.tensorflow.integers import as_signed, widened
from smdp.tensorflow.library import ops
from smdp.tensorflow.naming import run
from smdp.tensorflow.reduce_op import ReduceOp, reduce_op
from smdp.tensorflow.tracing import no_autograph, only_to_be_run


def all_reduce(
    tensor: Any, number: int, op: ReduceOp, name: str | None = None, ignore_name_scope: bool = False
) -> Any:
    """Reduces a tensor in the group with this number."""
    return run(ops.smdp_allreduce, number, name, ignore_name_scope, tensor=tensor, op=int(op))


def all_gather(tensor: Any, number: int, name: str | None = None, ignore_name_scope: bool = False) -> Any:
    """Concatenates the tensors of all ranks of the group with this number."""
    return run(ops.smdp_allgather, number, name, ignore_name_scope, tensor=tensor)


def reduce_tensor(
    tensor: Any, op: ReduceOp, group: Any, name: str | None = None, ignore_name_scope: bool = False
) -> Any:
    """Reduces a dense tensor over all ranks of a group."""
    sent, op, of_result = as_signed(tensor, op, group.size)
    with tf.device("CPU:0"):
        return of_result(all_reduce(sent, group.core.id, op, name, ignore_name_scope))


def scaled(tensor: Any, factor: float) -> Any:
    """Returns the tensor times a factor.

    Raises:
        ValueError: The tensor has an integer dtype and the factor is not a whole number.
    """
    if factor == 1.0:
        return tensor
    if tensor.dtype.is_integer and factor != int(factor):
        raise ValueError(
            f"[smdp] a {tensor.dtype.name} tensor cannot be multiplied by {factor}. Cast it to a float first."
        )
    return tensor * tf.cast(factor, tensor.dtype)


@no_autograph
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = None,
    *,
    group: Any = None,
) -> Any:
    """Returns the root's tensor on every rank. Shapes and dtypes must be the same on all ranks.

    Raises:
        TypeError: The dtype is not supported, or root_rank is not an integer.
        ValueError: The group does not have the rank root_rank.
    """
    members = group_of(group, process_set)
    root = root_of("broadcast", root_rank, members)
    return broadcast_labeled(tensor, root, members, name=name, ignore_name_scope=ignore_name_scope)


def broadcast_labeled(
    tensor: Any,
    root_rank: int,
    group: Any,
    label: str = "",
    name: str | None = None,
    ignore_name_scope: bool = False,
) -> Any:
    """Broadcasts from a root that was checked already. Errors contain the label, e.g. a variable's name."""
    if tf.executing_eagerly() and label:
        # The op does not get the label, because TensorFlow would keep a kernel for each label.
        try:
            return broadcast_labeled(tensor, root_rank, group, name=name)
        except tf.errors.OpError as error:
            text = f"{error.message} This call was for {label}."
            raise type(error)(error.node_def, error.op, text) from error
    tensor = tensor_of(tensor, "broadcast")
    with tf.device("CPU:0"):
        return run(
            ops.smdp_broadcast,
            group.core.id,
            name,
            ignore_name_scope,
            tensor=tensor,
            root=root_rank,
            label=label,
        )


@no_autograph
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = None,
    *,
    group: Any = None,
) -> Any:
    """Returns the tensors of all ranks, concatenated along the first dimension.

    Only this dimension may differ between ranks.
    """
    group = group_of(group, process_set)
    tensor = tensor_of(tensor, "allgather")
    with tf.device("CPU:0"):
        gathered = all_gather(tensor, group.core.id, name, ignore_name_scope)
    if not tf.executing_eagerly() and tensor.shape.rank:
        gathered.set_shape([None, *tensor.shape[1:]])
    return gathered


@no_autograph
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = None,
    *,
    group: Any = None,
) -> Any:
    """Sends rows to every rank and receives rows from every rank.

    Args:
        tensor: The rows for rank 0, followed by those for rank 1, and so on.
        splits: Number of rows for each rank. By default, all ranks get the same number.
        name: Optional name of the call, which must be the same on all ranks. In a graph of TensorFlow 1,
            calls with the same name belong together.
        ignore_name_scope: In a graph of TensorFlow 1, whether to leave the name scope out of the name.
        process_set: Another name for ``group``.
        group: The ranks that take part; all by default.

    Returns:
        The received rows. If ``splits`` is given, also the number of rows from each rank.
    """
    group = group_of(group, process_set)
    tensor = tensor_of(tensor, "alltoall")
    parts = tf.zeros([0], tf.int64) if splits is None else tf.convert_to_tensor(splits)
    if not parts.dtype.is_integer:
        raise TypeError(
            f"[smdp] rank {group.rank}: alltoall got splits of {parts.dtype.name}; it takes integers."
        )
    parts = tf.cast(parts, tf.int64)
    with tf.device("CPU:0"):
        received, counts = run(
            ops.smdp_alltoall, group.core.id, name, ignore_name_scope, tensor=tensor, splits=parts
        )
    if not tf.executing_eagerly() and tensor.shape.rank:
        received.set_shape([None, *tensor.shape[1:]])
        counts.set_shape([group.size])
    return received if splits is None else (received, counts)


@no_autograph
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    name: str | None = None,
    process_set: Any = None,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    group: Any = None,
) -> Any:
    """Returns this rank's rows of the mean, or of the reduction ``op``, over all ranks.

    The result is split along the first dimension. If the rows do not divide evenly, the first ranks get one
    row more. Arguments are those of allreduce, in Horovod's order.
    """
    before = scale_of("prescale_factor", prescale_factor)
    after = scale_of("postscale_factor", postscale_factor)
    group = group_of(group, process_set)
    wire = compressor(compression)
    tensor = tensor_of(tensor, "reducescatter")
    wide = widened(tensor, reduce_op(op))
    small, dtype = wire.compress(scaled(wide, before))
    sent, kind, of_result = as_signed(small, reduce_op(op), group.size)
    with tf.device("CPU:0"):
        part = run(ops.smdp_reducescatter, group.core.id, name, ignore_name_scope, tensor=sent, op=int(kind))
    part = scaled(wire.decompress(of_result(part), dtype), after)
    if wide is not tensor:
        part = tf.cast(part, tensor.dtype)
    if not tf.executing_eagerly() and tensor.shape.rank:
        part.set_shape([None, *tensor.shape[1:]])
    return part


@no_autograph
def barrier(*, group: Any = None, process_set: Any = None) -> Any:
    """Waits until all ranks have called it.

    Returns:
        None. In a graph of TensorFlow 1, the operation that waits, which a session must run.
    """
    with tf.device("CPU:0"):
        return only_to_be_run(run(ops.smdp_barrier, group_of(group, process_set).core.id))


def _rank_in(op: Any) -> tuple[int, int]:
    """Returns this rank and the size of an op's group, which the op knows only by its number."""
    group = by_id(op.get_attr("group"))
    return group.rank, group.size


def _reduce_again(gradient: Any, op: Any, kind: ReduceOp = ReduceOp.SUM) -> Any:
    with tf.device("CPU:0"):
        return all_reduce(gradient, op.get_attr("group"), kind)


def _gather_again(tensor: Any, op: Any) -> Any:
    with tf.device("CPU:0"):
        return all_gather(tensor, op.get_attr("group"))


def _linear(op: Any, what: str) -> ReduceOp:
    kind = ReduceOp(op.get_attr("op"))
    if kind not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        raise LookupError(f"[smdp] {what} with {kind.name} has no gradient; use SUM or AVERAGE.")
    return kind


@gradient_of("SmdpAllreduce")
def _allreduce_gradient(op: Any, gradient: Any) -> Any:
    return _reduce_again(gradient, op, _linear(op, "allreduce")), None


@gradient_of("SmdpBroadcast")
def _broadcast_gradient(op: Any, gradient: Any) -> Any:
    total = _reduce_again(gradient, op)
    is_root = _rank_in(op)[0] == op.get_attr("root")
    # All ranks make the same ops, and TensorFlow must run all of them.
    with tf.control_dependencies([total]):
        return tf.where(is_root, total, tf.zeros_like(total)), None


@gradient_of("SmdpAllgather")
def _allgather_gradient(op: Any, gradient: Any) -> Any:
    rows = tf.shape(op.inputs[0], out_type=tf.int64)[:1]
    begin = tf.reduce_sum(_gather_again(rows, op)[: _rank_in(op)[0]])
    return _reduce_again(gradient, op)[begin : begin + rows[0]], None


@gradient_of("SmdpAlltoall")
def _alltoall_gradient(op: Any, gradient: Any, _: Any) -> Any:
    with tf.device("CPU:0"):
        back, _ = run(ops.smdp_alltoall, op.get_attr("group"), tensor=gradient, splits=op.outputs[1])
    return back, None, None


@gradient_of("SmdpReducescatter")
def _reducescatter_gradient(op: Any, gradient: Any) -> Any:
    kind = _linear(op, "reducescatter")
    gathered = _gather_again(gradient, op)
    return (gathered if kind is ReduceOp.SUM else gathered / tf.cast(_rank_in(op)[1], gathered.dtype)), None
