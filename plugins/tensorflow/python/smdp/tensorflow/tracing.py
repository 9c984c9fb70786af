"""What can be known while TensorFlow traces a function."""

from __future__ import annotations

import sys
import warnings
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


def refuse_xla() -> None:
    """Stops the trace of a function that XLA would compile, which would fail later and less clearly.

    Raises:
        ValueError: One of the functions being traced has jit_compile=True.
    """
    if tf.executing_eagerly():
        return
    frame = sys._getframe(1)
    while frame is not None:
        # tf.function's own class holds what the user asked for; the graph does not say.
        owner = frame.f_locals.get("self")
        if getattr(owner, "_jit_compile", None) is True and hasattr(owner, "python_function"):
            raise ValueError(
                f"[smdp] the function {_name_of(owner)!r} has jit_compile=True, and XLA cannot"
                " compile communication. Put tf.function(jit_compile=True) on forward and backward only,"
                " or use model.compile(jit_compile=False), or the BroadcastGlobalVariablesCallback in fit()."
            )
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
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, tf.keras.mixed_precision.LossScaleOptimizer) and owner is not optimizer:
            raise ValueError(
                "[smdp] a LossScaleOptimizer calls the distributed optimizer, so each rank decides alone"
                " whether to skip a step. Distribute the outer one:"
                " DistributedOptimizer(tf.keras.mixed_precision.LossScaleOptimizer(optimizer))."
            )
        frame = frame.f_back  # type: ignore[assignment]
