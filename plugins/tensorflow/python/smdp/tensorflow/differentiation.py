"""The gradient functions of smdp's ops by type, for TensorFlow and for the ops written in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

_gradients: dict[str, Callable[..., Any]] = {}


def gradient_of(op_type: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a gradient function.

    It takes the op and the gradients of its outputs, and returns a gradient for each input.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _gradients[op_type] = function
        tf.RegisterGradient(op_type)(function)
        return function

    return register


def differentiate(op_type: str, op: Any, *gradients: Any) -> Any:
    """Returns the gradients of an op's inputs. ``op`` has inputs, outputs and get_attr()."""
    return _gradients[op_type](op, *gradients)
