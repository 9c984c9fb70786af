"""Checks and helpers for code that TensorFlow is tracing."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import tensorflow as tf

_Function = TypeVar("_Function")


def no_autograph(function: _Function) -> _Function:
    """Keeps AutoGraph from translating a function, which would take seconds and change nothing."""
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))


def only_to_be_run(operation: Any) -> Any:
    """Returns the operation of a call without a result if a session must run it, otherwise None.

    In a function, TensorFlow runs the operation in the order of the program, and the function cannot return
    it.
    """
    if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function:
        return None
    return operation


def refuse_in_trace() -> None:
    """Stops the trace of a function in which a collective would fail later or return wrong values.

    Raises:
        ValueError: A function that is being traced has jit_compile=True, or tf.data will run it for several
            elements at once.
    """
    if tf.executing_eagerly():
        return
    for owner in _owners():
        # Only tf.function's class holds the user's choice; the graph does not.
        if getattr(owner, "_jit_compile", None) is True and hasattr(owner, "python_function"):
            raise ValueError(
                f"[smdp] the function {_name_of(owner)!r} has jit_compile=True, but XLA cannot"
                " compile communication. Put tf.function(jit_compile=True) on forward and backward only,"
                " or use model.compile(jit_compile=False), or the BroadcastGlobalVariablesCallback in fit()."
            )
        if isinstance(owner, tf.data.Dataset) and "Parallel" in type(owner).__name__:
            raise ValueError(
                "[smdp] a collective is in a function of tf.data with num_parallel_calls, which TensorFlow"
                " runs for several elements at once, in a different order on each rank. Remove"
                " num_parallel_calls if the function has collectives."
            )


def is_in_data_function() -> bool:
    """Returns whether the function that is being traced belongs to tf.data or is called by one that does."""
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "_smdp_is_of_data"):  # looked up once, not for every op
        graph._smdp_is_of_data = any(
            type(owner).__name__ == "StructuredFunctionWrapper" for owner in _owners()
        )
    return bool(graph._smdp_is_of_data)


def _owners() -> Iterator[Any]:
    """Yields the `self` of the methods on the call stack, innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        if "self" in frame.f_locals:
            yield frame.f_locals["self"]
        frame = frame.f_back  # type: ignore[assignment]


def _name_of(function: Any) -> str:
    # In TensorFlow 2.13, tf.function's class has no name.
    return str(getattr(function, "__name__", "") or getattr(function.python_function, "__name__", ""))


def leave_out_xla(model: Any) -> None:
    """Makes fit() train without XLA, which `"auto"` turns on for GPUs, if the optimizer is distributed.

    Called in on_train_begin(), which runs only in fit() and before the first step is traced.
    """
    if hasattr(model.optimizer, "_smdp_reduction") and model.jit_compile:
        model.jit_compile = False
        # Keras has already created the train function.
        model.train_function = None
        model.make_train_function()
        warnings.warn(
            "[smdp] fit() trains without XLA, which cannot compile communication; model.compile() had"
            " jit_compile=True, or 'auto' had chosen it.",
            RuntimeWarning,
            stacklevel=2,
        )


def refuse_inner_optimizer(optimizer: Any) -> None:
    """Rejects a LossScaleOptimizer around a distributed optimizer, because ranks would skip different steps.

    Raises:
        ValueError: A LossScaleOptimizer is calling.
    """
    for owner in _owners():
        if isinstance(owner, tf.keras.mixed_precision.LossScaleOptimizer) and owner is not optimizer:
            raise ValueError(
                "[smdp] a LossScaleOptimizer calls the distributed optimizer, so each rank decides"
                " separately whether to skip a step. Distribute the outer one:"
                " DistributedOptimizer(tf.keras.mixed_precision.LossScaleOptimizer(optimizer))."
            )
