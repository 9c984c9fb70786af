"""The groups and dtypes that ops support, and the tokens that order ops."""

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
    """A resource that ops take, so that TensorFlow runs them in the order of the program.

    Without a resource, TensorFlow orders stateful ops only within one function, not across the functions that
    it calls. In a graph of TensorFlow 1, a token does not order anything, but ops need one of that graph. The
    handle refers to a resource that does not exist, because a real variable could only be created in the
    first trace of a function.
    """

    def __init__(self) -> None:
        self._eager: Any = None

    @property
    def handle(self) -> Any:
        """The resource in the graph, or the eager context, in which ops are created now."""
        if not tf.executing_eagerly():
            return self._seen_in(tf.compat.v1.get_default_graph())
        return self._outermost() if self._eager is None else self._eager

    def _seen_in(self, graph: Any) -> Any:
        if not hasattr(graph, "capture"):
            return self._outermost()
        # The gradient of a loop or a condition can only capture tensors of the graph around it.
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
            # Keyed by this object, because a collection with a name would be saved with the graph.
            made = tf.compat.v1.get_default_graph().get_collection_ref(self)
            if not made:
                made.append(_new_handle())
            return made[0]


def _new_handle() -> Any:
    return tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[], shared_name=f"smdp_token_{next(_numbers)}")


_numbers = itertools.count()


def group_of(group: Any = None, process_set: Any = None) -> smdp.Group:
    """Returns the group that is passed to a call, by default the world.

    Raises:
        ConfigError: init() was not called, or this rank is in no group.
        TypeError: It is not a group.
        ValueError: A function is being traced that must not contain collectives.
    """
    refuse_in_trace()
    chosen = group if group is not None else process_set
    if chosen is None:
        chosen = smdp.world()
    if isinstance(chosen, smdp.NoGroup):
        raise smdp.ConfigError(
            f"[smdp] rank {smdp.rank()} of {smdp.size()} is in no group: its color in split() was None. Only"
            " members of a group may make calls with it: if group: ..."
        )
    if not isinstance(chosen, smdp.Group):
        raise TypeError(
            f"[smdp] group (or process_set) is a {type(chosen).__name__}; it must be an smdp.Group,"
            " e.g. smdp.world().split(color)."
        )
    _groups[chosen.core.id] = chosen
    return chosen


# By the number that is an attribute of ops. Groups are kept here, because a traced function holds only it.
_groups: dict[int, smdp.Group] = {}
_tokens: dict[int, Token] = {}


def by_id(number: int) -> smdp.Group:
    """Returns the group that an op was created with.

    Raises:
        LookupError: smdp has been shut down since.
    """
    if number not in _groups:
        raise LookupError("[smdp] the group that this op was created with is gone: smdp was shut down.")
    return _groups[number]


def token_of(number: int) -> Any:
    """Returns the token for collectives of a group."""
    if number not in _tokens:
        _tokens[number] = Token()
    return _tokens[number].handle


def forget_groups() -> None:
    """Forgets all groups and tokens, after a shutdown."""
    _groups.clear()
    _tokens.clear()


def tensor_of(value: Any, what: str, name: str = "") -> Any:
    """Returns a value as a tensor that can be sent.

    ``name`` is used in errors; the default is the value's own name.

    Raises:
        TypeError: It is not a dense tensor, or its dtype is not supported.
    """
    if value is None or isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        kind = "None" if value is None else f"a {type(value).__name__}"
        raise TypeError(
            f"[smdp] rank {smdp.rank()}: {what} got {kind}{f' for {name!r}' if name else ''}; it takes dense"
            " tensors. Send other tensors in parts: flat_values and row_splits, or indices and values."
        )
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        given = f"{name!r}, " if name else ""
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise TypeError(
            f"[smdp] rank {smdp.rank()}: {what} got {given}a {type(value).__name__}, which cannot be"
            f" converted to a tensor: {reason}."
        ) from None
    if tensor.dtype.name not in DTYPES:
        name = name or name_of(value)
        raise TypeError(
            f"[smdp] rank {smdp.rank()}: {what} got {f'{name!r}, ' if name else ''}a tensor of"
            f" {tensor.dtype.name}; it takes {', '.join(DTYPES)}."
        )
    return tensor


def name_of(value: Any) -> str:
    """Returns the name of a variable or a graph tensor in the program, or an empty string."""
    path = getattr(value, "path", None)  # Keras 3
    if path is None and not (tf.executing_eagerly() and tf.is_tensor(value) and not hasattr(value, "assign")):
        path = getattr(value, "name", None)
    return str(path or "")
