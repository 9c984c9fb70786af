"""The ops as calls into Python, for a TensorFlow that cannot load the op library.

They have the names and arguments of the library's ops. All gradients of a step go through one call after
backward, so communication does not overlap backward. A function with these ops cannot be saved. In a graph of
TensorFlow 1, ranks compare names but do not match ops by them: a waiting op blocks one of TensorFlow's few
threads, so the program must order the ops with control dependencies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

import smdp
from smdp import _core
from smdp._buffers import view
from smdp._call_name import call_name
from smdp.tensorflow.differentiation import differentiate
from smdp.tensorflow.groups import by_id
from smdp.tensorflow.python_functions import own

Array = npt.NDArray[Any]


@dataclass
class _Op:
    """The part of tf.Operation that gradient functions use."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    attributes: dict[str, int]

    def get_attr(self, name: str) -> int:
        return self.attributes[name]


_Function = TypeVar("_Function", bound=Callable[..., Any])


def in_python(function: _Function) -> _Function:
    """Marks an op that takes its name as an argument and not from the node."""
    function.is_in_python = True  # type: ignore[attr-defined]
    return function


@in_python
def smdp_allreduce(tensor: Any, token: Any, group: int, op: int, known_as: str = "") -> Any:
    """Does the work of the op SmdpAllreduce."""

    def run(value: Array) -> Array:
        return _reduced(by_id(group), value, op)

    return _call(
        "SmdpAllreduce", _named(run, known_as), token, [tensor], {"group": group, "op": op}, [tensor.shape]
    )


@in_python
def smdp_broadcast(
    tensor: Any, token: Any, group: int, root: int, label: str = "", known_as: str = ""
) -> Any:
    """Does the work of the op SmdpBroadcast; errors do not contain the label."""

    def run(value: Array) -> Array:
        return by_id(group).broadcast(_copy(value), root)  # type: ignore[no-any-return]

    return _call(
        "SmdpBroadcast",
        _named(run, known_as),
        token,
        [tensor],
        {"group": group, "root": root},
        [tensor.shape],
    )


@in_python
def smdp_allgather(tensor: Any, token: Any, group: int, known_as: str = "") -> Any:
    """Does the work of the op SmdpAllgather."""

    def run(value: Array) -> Array:
        members = by_id(group)
        rows = members.all_gather(np.array([_rows(value, "allgather")])).ravel()
        out = np.empty((int(rows.sum()), *value.shape[1:]), value.dtype)
        members.all_gather(np.ascontiguousarray(value), out=_parts(out, rows))
        return out

    return _call("SmdpAllgather", _named(run, known_as), token, [tensor], {"group": group}, [None])


@in_python
def smdp_alltoall(tensor: Any, splits: Any, token: Any, group: int, known_as: str = "") -> Any:
    """Does the work of the op SmdpAlltoall."""

    def run(value: Array, given: Array) -> tuple[Array, Array]:
        members = by_id(group)
        rows = _rows(value, "alltoall")
        sent = given
        if given.size == 0 and rows % members.size == 0:
            sent = np.full(members.size, rows // members.size)
        if sent.size != members.size or (sent < 0).any() or sent.sum() != rows:
            raise ValueError(
                f"[smdp] alltoall of {rows} rows between {members.size} ranks got the splits"
                f" {given.tolist()}; expected one split per rank, none negative, that add up to the number"
                " of rows. Without splits, the rows must divide evenly among the ranks."
            )
        # Ranks exchange the shape of a row with the counts, because the core compares only blocks of equal
        # size.
        own = np.array(value.shape[1:], np.int64)
        told = members.all_to_all(np.column_stack([sent, np.tile(own, (members.size, 1))]).astype(np.int64))
        for sender, row in enumerate(told[:, 1:]):
            if (row != own).any():
                raise smdp.MismatchError(
                    f"[smdp] rank {members.rank} of {members.size}: alltoall got rows of {own.tolist()}, but"
                    f" rank {sender} sends rows of {row.tolist()}. All dimensions except the first must be"
                    " the same on all ranks."
                )
        received = told[:, 0]
        out = np.empty((int(received.sum()), *value.shape[1:]), value.dtype)
        members.all_to_all(_parts(np.ascontiguousarray(value), sent), out=_parts(out, received))
        return out, received

    return _call(
        "SmdpAlltoall",
        _named(run, known_as),
        token,
        [tensor, splits],
        {"group": group},
        [None, None],
        [tf.int64],
    )


@in_python
def smdp_reducescatter(tensor: Any, token: Any, group: int, op: int, known_as: str = "") -> Any:
    """Does the work of the op SmdpReducescatter."""

    def run(value: Array) -> Array:
        members = by_id(group)
        each, more = divmod(_rows(value, "reducescatter"), members.size)
        sizes = np.array([each + (rank < more) for rank in range(members.size)])
        parts = _parts(np.ascontiguousarray(value), sizes)
        return members.reduce_scatter(parts, smdp.ReduceOp(op))  # type: ignore[no-any-return]

    return _call(
        "SmdpReducescatter", _named(run, known_as), token, [tensor], {"group": group, "op": op}, [None]
    )


@in_python
def smdp_barrier(token: Any, group: int, known_as: str = "") -> Any:
    """Does the work of the op SmdpBarrier."""

    def run() -> Array:
        by_id(group).barrier()
        return np.zeros(0, np.float32)

    done = _in_order(_named(run, known_as), token, [], [tf.float32])[0]
    return None if tf.executing_eagerly() else done.op


def reduce_gradients(
    core: Callable[[], _core.GradientReducer], token: Any, indices: Sequence[int], gradients: Sequence[Any]
) -> list[Any]:
    """Returns the means of a step's gradients, whose positions in the reducer's list are ``indices``."""

    def run(*values: Array) -> list[Array]:
        reducer = core()
        means = [_copy(value) for value in values]
        for index, mean in zip(indices, means, strict=True):
            reducer.ready(index, view(mean, writes=True, what="a gradient").pointer)
        reducer.finish()
        reducer.wait()
        return means

    means = _in_order(run, token, gradients, [gradient.dtype for gradient in gradients])
    for mean, gradient in zip(means, gradients, strict=True):
        mean.set_shape(gradient.shape)
    return means


def _call(
    op_type: str,
    run: Callable[..., Any],
    token: Any,
    inputs: Sequence[Any],
    attributes: dict[str, int],
    shapes: Sequence[Any],
    more: Sequence[Any] = (),
) -> Any:
    """Calls `run` on NumPy arrays as an op with its gradient.

    The dtype of the first output is that of the first input.
    """
    dtypes = [inputs[0].dtype, *more]

    @tf.custom_gradient
    def call(*tensors: Any) -> Any:
        outputs = _in_order(run, token, tensors, dtypes)
        for output, shape in zip(outputs, shapes, strict=True):
            output.set_shape(shape)

        def backward(*gradients: Any) -> Any:
            op = _Op([*tensors, token], outputs, attributes)
            return differentiate(op_type, op, *gradients)[: len(tensors)]

        return outputs if more else outputs[0], backward

    return call(*inputs)


def _in_order(run: Callable[..., Any], token: Any, inputs: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
    """Calls `run` as an op in the order of the program, which TensorFlow keeps for writes to the token."""
    if tf.executing_eagerly():
        arrays = tf.nest.flatten(run(*(np.asarray(tensor.numpy()) for tensor in inputs)))
        return [tf.convert_to_tensor(array, dtype) for array, dtype in zip(arrays, dtypes, strict=True)]
    quiet = own(tf.autograph.experimental.do_not_convert(run))
    with tf.control_dependencies([tf.raw_ops.AssignVariableOp(resource=token, value=0)]):
        outputs = tf.nest.flatten(tf.numpy_function(quiet, inputs, dtypes))
    with tf.control_dependencies(outputs):
        tf.raw_ops.AssignVariableOp(resource=token, value=0)
    return outputs  # type: ignore[no-any-return]


def _named(run: Callable[..., Any], name: str) -> Callable[..., Any]:
    def named(*values: Array) -> Any:
        with call_name(name):
            return run(*values)

    return named if name else run


def _copy(value: Any) -> Array:
    return np.array(value, order="C")


def _reduced(group: smdp.Group, value: Array, op: int) -> Array:
    return group.all_reduce(_copy(value), smdp.ReduceOp(op))  # type: ignore[no-any-return]


def _rows(value: Array, what: str) -> int:
    if value.ndim == 0:
        raise ValueError(
            f"[smdp] {what} works along the first dimension, but the tensor is a scalar. Reshape it to [1]."
        )
    return int(value.shape[0])


def _parts(array: Array, rows: Array) -> list[Array]:
    """Returns views of consecutive rows."""
    return np.split(array, np.cumsum(rows)[:-1])
