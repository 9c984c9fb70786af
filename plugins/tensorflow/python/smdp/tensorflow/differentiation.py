"""Gradients of smdp's ops, by type, for TensorFlow and for the ops that are written in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

_gradients: dict[str, Callable[..., Any]] = {}


def gradient_of(op_type: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function of the op and its outputs' gradients, which gives one for each input."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _gradients[op_type] = function
        tf.RegisterGradient(op_type)(function)
        return function

    return register


def differentiate(op_type: str, op: Any, *gradients: Any) -> Any:
    """The gradients of an op's inputs; ``op`` has what tf.Operation has: inputs, outputs, get_attr()."""
    return _gradients[op_type](op, *gradients)
