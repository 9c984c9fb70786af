"""What can be known while TensorFlow traces a function."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import tensorflow as tf

_Function = TypeVar("_Function")


def no_autograph(function: _Function) -> _Function:
    """Lets graphs call a function as it is: AutoGraph takes seconds to translate ours, to the same end."""
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))


def only_to_be_run(operation: Any) -> Any:
    """What a call without a result returns: the operation where a session must be asked to run it, else None.

    In a function TensorFlow runs it in the order of the program, and lets none return an operation.
    """
    if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function:
        return None
    return operation


def refuse_in_trace() -> None:
    """Stops the trace of a function in which a collective would fail later, or give wrong values.

    Raises:
        ValueError: One of the functions being traced has jit_compile=True, or tf.data will run it for several
            elements at once.
    """
    if tf.executing_eagerly():
        return
    for owner in _owners():
        # tf.function's own class holds what the user asked for; the graph does not say.
        if getattr(owner, "_jit_compile", None) is True and hasattr(owner, "python_function"):
            raise ValueError(
                f"[smdp] the function {_name_of(owner)!r} has jit_compile=True, and XLA cannot"
                " compile communication. Put tf.function(jit_compile=True) on forward and backward only,"
                " or use model.compile(jit_compile=False), or the BroadcastGlobalVariablesCallback in fit()."
            )
        if isinstance(owner, tf.data.Dataset) and "Parallel" in type(owner).__name__:
            raise ValueError(
                "[smdp] a collective is in a function of tf.data with num_parallel_calls, which TensorFlow"
                " runs for several elements at once, on each rank in another order. Leave num_parallel_calls"
                " out where a function has collectives."
            )


def is_in_data_function() -> bool:
    """Returns whether the function that is being traced is one of tf.data, or is called by one."""
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "_smdp_is_of_data"):  # looked up once, and not for each op
        graph._smdp_is_of_data = any(
            type(owner).__name__ == "StructuredFunctionWrapper" for owner in _owners()
        )
    return bool(graph._smdp_is_of_data)


def _owners() -> Iterator[Any]:
    """What the functions that are being called are methods of, from the inside to the outside."""
    frame = sys._getframe(1)
    while frame is not None:
        if "self" in frame.f_locals:
            yield frame.f_locals["self"]
        frame = frame.f_back  # type: ignore[assignment]


def _name_of(function: Any) -> str:
    # In TensorFlow 2.13 tf.function's own class has no name.
    return str(getattr(function, "__name__", "") or getattr(function.python_function, "__name__", ""))


def leave_out_xla(model: Any) -> None:
    """Has fit() train a model with a distributed optimizer without XLA, which `"auto"` means on GPUs.

    In on_train_begin(), which comes in fit() only, and before the first step is traced.
    """
    if hasattr(model.optimizer, "_smdp_reduction") and model.jit_compile:
        model.jit_compile = False
        # Keras has made it already.
        model.train_function = None
        model.make_train_function()
        warnings.warn(
            "[smdp] fit() goes without XLA, which cannot compile communication; model.compile() had"
            " jit_compile=True, or it followed from 'auto'.",
            RuntimeWarning,
            stacklevel=2,
        )


def refuse_inner_optimizer(optimizer: Any) -> None:
    """Stops a LossScaleOptimizer around a distributed optimizer: each rank would decide alone.

    Raises:
        ValueError: One is calling.
    """
    for owner in _owners():
        if isinstance(owner, tf.keras.mixed_precision.LossScaleOptimizer) and owner is not optimizer:
            raise ValueError(
                "[smdp] a LossScaleOptimizer calls the distributed optimizer, so each rank decides alone"
                " whether to skip a step. Distribute the outer one:"
                " DistributedOptimizer(tf.keras.mixed_precision.LossScaleOptimizer(optimizer))."
            )
