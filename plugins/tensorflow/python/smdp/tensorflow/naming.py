"""The names by which other ranks recognize an op.

Eager code and a ``tf.function`` run collectives in the order of the program, so names are only compared.
A graph of TensorFlow 1 runs its ops in any order. Each op in it has a unique name, by which ranks match ops.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import Any

import tensorflow as tf

from smdp._call_name import call_name
from smdp.tensorflow.groups import token_of
from smdp.tensorflow.tracing import is_in_data_function

# Numbers of the graphs of TensorFlow 1 that contain collectives.
_graph_numbers = itertools.count(1)


def run(
    make: Any, number: int, name: str | None = None, ignore_name_scope: bool = False, /, **inputs: Any
) -> Any:
    """Calls ``make`` for the group with this number, and passes it the program's name for the op.

    An op that needs a name but has none is named after its first input.
    """
    if tf.executing_eagerly():
        if not name:
            return make(token=token_of(number), group=number, **inputs)
        with call_name(name):
            return make(token=token_of(number), group=number, **inputs)
    graph = graph_of_session()
    if graph is None:
        # Functions of tf.data run concurrently with the program, perhaps long before their results are used.
        known_as = name or ("call in a function of tf.data" if is_in_data_function() else "")
        flags = []
    else:
        given = name or _name_of(make, inputs.get("tensor"))
        scope = "" if ignore_name_scope else tf.compat.v1.get_default_graph().get_name_scope()
        known_as = _unique(graph, f"{scope}/{given}" if scope else given)
        is_inner = graph is not tf.compat.v1.get_default_graph()
        flags = ["_smdp_by_name", "_smdp_is_inner"] if is_inner else ["_smdp_by_name"]
    if getattr(make, "is_in_python", False):
        return make(token=token_of(number), group=number, known_as=known_as, **inputs)
    attributes = {flag: tf.compat.v1.AttrValue(b=True) for flag in flags}
    if known_as:
        attributes["_smdp_known_as"] = tf.compat.v1.AttrValue(s=known_as.encode())
    with tf.compat.v1.get_default_graph()._attr_scope(attributes):
        return make(token=token_of(number), group=number, name=_node_name(name), **inputs)


def graph_of_session() -> Any:
    """Returns the TensorFlow 1 graph whose session will run the ops that are created now, or None."""
    if tf.executing_eagerly():
        return None
    with tf.init_scope():
        return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def runs_in_any_order() -> bool:
    """Returns whether an op that is created now may run several times in a session, in an unknown order.

    This is the case in a loop, and in a function that the graph may call more than once.
    """
    graph = graph_of_session()
    here = tf.compat.v1.get_default_graph()
    return graph is not None and (graph is not here or here._get_control_flow_context() is not None)


def place_in_list(index: int) -> str | None:
    """Returns a name for an entry of a list, if it needs one. Variables' own names may differ on ranks."""
    return None if graph_of_session() is None else f"number {index} of a list"


def count_in(graph: Any, what: Any) -> int:
    """Counts the calls for a graph and a key, and returns the number of earlier calls."""
    counts = _of(graph)[1]
    counts[what] += 1
    return counts[what] - 1


def _of(graph: Any) -> tuple[int, Counter[Any]]:
    if not hasattr(graph, "_smdp_names"):
        graph._smdp_names = next(_graph_numbers), Counter()
    return graph._smdp_names  # type: ignore[no-any-return]


def _unique(graph: Any, name: str) -> str:
    number, _ = _of(graph)
    before = count_in(graph, name)
    unique = f"{name} ({before + 1})" if before else name
    return unique if number == 1 else f"{unique} of graph {number}"


def _name_of(make: Any, tensor: Any) -> str:
    kind = make.__name__.removeprefix("smdp_")
    return kind if tensor is None else f"{kind} of {tensor.op.name}"


def _node_name(name: str | None) -> str | None:
    return re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name).lstrip("_\\/>-") or None if name else None
