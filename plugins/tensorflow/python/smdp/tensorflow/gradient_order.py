"""The order of ops in the gradient of a function.

TensorFlow runs ops that take the same resource in the order in which they were created. To do so, it adds
control dependencies to every graph that it traces, but not to a function's gradient. This module adds them
there, for smdp's ops and for calls of functions that contain smdp's ops.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

_create_op = FuncGraph._create_op_internal


def put_in_order(resource: Any) -> None:
    """Makes ops that take this eager tensor run in the order in which they are created, in any graph."""
    resource._smdp_is_ordered = True
    FuncGraph._create_op_internal = _create_in_order


def _create_in_order(graph: Any, op_type: str, inputs: Any, *args: Any, **more: Any) -> Any:
    if not graph._add_control_dependencies and op_type != "Identity":
        inputs = [_after_others(graph, one) if one.dtype == tf.resource else one for one in inputs]
    return _create_op(graph, op_type, inputs, *args, **more)


def _after_others(graph: Any, tensor: Any) -> Any:
    """Returns the resource with a dependency on the op that took it last; other tensors unchanged."""
    outside = tensor
    is_of_graph = getattr(tensor, "graph", None) is graph  # an eager tensor has no graph
    if is_of_graph and tensor.op.type == "Placeholder":
        outside = next((outside for outside, inside in graph.captures if inside is tensor), None)
    if not hasattr(outside, "_smdp_is_ordered"):
        return tensor
    tensor = graph.capture(tensor)
    if not hasattr(graph, "_smdp_given"):
        graph._smdp_given = {}
    given = graph._smdp_given.setdefault(id(outside), [])
    before: list[Any] = next((ops for one in reversed(given) if (ops := one.consumers())), [])
    with graph.as_default(), tf.device("CPU:0"), tf.control_dependencies(before):
        given.append(tf.identity(tensor))
    return given[-1]
