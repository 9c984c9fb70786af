"""Names for the collectives in Python functions of a graph, such as those of tf.py_function.

TensorFlow does not order such functions as it orders ops, so two of them may call collectives in a different
order on each rank. With the function's name, this is a MismatchError instead of a wrong value.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from tensorflow.python.ops import script_ops

from smdp._call_name import call_name
from smdp.tensorflow.naming import count_in, graph_of_session

# By the token that TensorFlow gives to a function as long as it lives. Tokens may differ between ranks.
_names: dict[Any, str] = {}
_OWN = "_smdp_is_own"


def name_python_functions() -> None:
    """Names the unnamed calls in a Python function of a graph after the function."""
    registry = script_ops.FuncRegistry
    insert, call = registry.insert, registry.__call__

    def insert_named(self: Any, function: Any) -> Any:
        token = insert(self, function)
        name = _name_of(function)
        if name:
            _names[token] = name
            weakref.finalize(function, _names.pop, token, None).atexit = False
        return token

    def call_named(self: Any, token: Any, device: Any, args: Any) -> Any:
        with call_name(_names.get(token, "")):
            return call(self, token, device, args)

    registry.insert, registry.__call__ = insert_named, call_named


def own(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function of smdp, which names its own calls."""
    setattr(function, _OWN, True)
    return function


def _name_of(function: Any) -> str:
    """Returns where a function is defined, and in a TensorFlow 1 graph also its number in the graph."""
    inner = getattr(function, "_func", function)  # the wrapper of tf.py_function
    if getattr(inner, _OWN, False):
        return ""
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    code = getattr(inner, "__code__", None)
    where = f"{code.co_name}, line {code.co_firstlineno}" if code else type(inner).__name__
    name = f"Python function {where}"
    graph = graph_of_session()
    before = 0 if graph is None else count_in(graph, name)
    return f"{name} ({before + 1})" if before else name
