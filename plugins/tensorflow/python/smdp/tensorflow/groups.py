"""Which ranks an op works between, and what it can carry."""

from __future__ import annotations

import itertools
from typing import Any

import tensorflow as tf

import smdp
from smdp.tensorflow.gradient_order import put_in_order
from smdp.tensorflow.tracing import refuse_in_trace

DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32"]
DTYPES += ["uint32", "int64", "uint64", "bool", "complex64", "complex128"]


class Token:
    """A resource for ops to take, so that TensorFlow runs them in the order of the program.

    It orders stateful ops without a resource only within one function, not through the functions it calls.
    In a graph of TensorFlow 1 it orders nothing, but ops need one of that graph. It is the name of a resource
    that does not exist: a variable could be made in the first trace of a function alone.
    """

    def __init__(self) -> None:
        self._eager: Any = None

    @property
    def handle(self) -> Any:
        """The resource, where ops are made now."""
        if not tf.executing_eagerly():
            return self._seen_in(tf.compat.v1.get_default_graph())
        return self._outermost() if self._eager is None else self._eager

    def _seen_in(self, graph: Any) -> Any:
        if not hasattr(graph, "capture"):
            return self._outermost()
        # Gradients of a loop or a condition take nothing from outside but what the graph around them has.
        is_inner = hasattr(graph, "_forward_graph")
        return graph.capture(self._seen_in(graph.outer_graph) if is_inner else self._outermost())

    def _outermost(self) -> Any:
        if self._eager is not None and tf.executing_eagerly():
            return self._eager
        with tf.init_scope(), tf.device("CPU:0"):
            if tf.executing_eagerly():
                if self._eager is None:
                    self._eager = _new_handle()
                    put_in_order(self._eager)
                return self._eager
            # A collection by a name would be saved with the graph.
            made = tf.compat.v1.get_default_graph().get_collection_ref(self)
            if not made:
                made.append(_new_handle())
            return made[0]


def _new_handle() -> Any:
    return tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[], shared_name=f"smdp_token_{next(_numbers)}")


_numbers = itertools.count()


def group_of(group: Any = None, process_set: Any = None) -> smdp.Group:
    """The group that a call names, by default the world.

    Raises:
        ConfigError: Before init(), or this rank is in no group.
        TypeError: It is no group.
        ValueError: A function is being traced in which there can be no collective.
    """
    refuse_in_trace()
    chosen = group if group is not None else process_set
    if chosen is None:
        chosen = smdp.world()
    if isinstance(chosen, smdp.NoGroup):
        raise smdp.ConfigError(
            f"[smdp] rank {smdp.rank()} of {smdp.size()} is in no group: its color in split() was None. Only"
            " members of a group make calls with it: if group: ..."
        )
    if not isinstance(chosen, smdp.Group):
        raise TypeError(
            f"[smdp] group (or process_set) is a {type(chosen).__name__}; it must be a smdp.Group,"
            " e.g. smdp.world().split(color)."
        )
    _groups[chosen.core.id] = chosen
    return chosen


# By number, as the attributes of ops have them; kept because a traced function keeps the number only.
_groups: dict[int, smdp.Group] = {}
_tokens: dict[int, Token] = {}


def by_id(number: int) -> smdp.Group:
    """The group that an op was made with.

    Raises:
        LookupError: smdp was shut down since.
    """
    if number not in _groups:
        raise LookupError("[smdp] the group that this op was made with is gone: smdp was shut down.")
    return _groups[number]


def token_of(number: int) -> Any:
    """What collectives of a group take."""
    if number not in _tokens:
        _tokens[number] = Token()
    return _tokens[number].handle


def forget_groups() -> None:
    """After shutdown."""
    _groups.clear()
    _tokens.clear()


def tensor_of(value: Any, what: str, name: str = "") -> Any:
    """The value as a tensor that can be sent; the name is for the error, by default the value's own.

    Raises:
        TypeError: Its dtype cannot, or it is no dense tensor.
    """
    if value is None or isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        kind = "no tensor but None" if value is None else f"a {type(value).__name__}"
        raise TypeError(
            f"[smdp] rank {smdp.rank()}: {what} got {kind}{f' for {name!r}' if name else ''}; it takes dense"
            " tensors. Send the parts of others: flat_values and row_splits, indices and values."
        )
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        given = f"{name!r}, " if name else ""
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise TypeError(
            f"[smdp] rank {smdp.rank()}: {what} got {given}a {type(value).__name__}, which is no tensor and"
            f" cannot become one: {reason}."
        ) from None
    if tensor.dtype.name not in DTYPES:
        name = name or name_of(value)
        raise TypeError(
            f"[smdp] rank {smdp.rank()}: {what} got {f'{name!r}, ' if name else ''}a tensor of"
            f" {tensor.dtype.name}; it takes {', '.join(DTYPES)}."
        )
    return tensor


def name_of(value: Any) -> str:
    """What the user knows a variable or a tensor of a graph by; empty if there is nothing."""
    path = getattr(value, "path", None)  # Keras 3
    if path is None and not (tf.executing_eagerly() and tf.is_tensor(value) and not hasattr(value, "assign")):
        path = getattr(value, "name", None)
    return str(path or "")
