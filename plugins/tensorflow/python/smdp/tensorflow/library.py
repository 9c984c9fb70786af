"""Loads the op library into TensorFlow, or falls back to ops in Python if this TensorFlow rejects it."""

from __future__ import annotations

import ctypes
import os
import warnings
from pathlib import Path
from typing import Any

import tensorflow as tf

from smdp.config import TENSORFLOW_OPS, read_choice
from smdp.tensorflow import python_ops, trial
from smdp.tensorflow.python_functions import name_python_functions

# Functions of TensorFlow's C API that the library uses and that a release may lack.
_NEEDED = (
    "TF_NewAsyncKernelBuilder",
    "TF_RunAsyncOpKernelDoneCallback",
    "TF_ForwardInputOrAllocateOutput",
    "TF_OpDefinitionBuilderSetIsStateful",
    "TF_RegisterOpDefinition",
    "TF_RegisterKernelBuilder",
)
_OPS = (
    "smdp_allgather",
    "smdp_allreduce",
    "smdp_alltoall",
    "smdp_barrier",
    "smdp_broadcast",
    "smdp_gradient_begin",
    "smdp_gradient_finish",
    "smdp_gradient_means",
    "smdp_gradient_ready",
    "smdp_reducescatter",
)


# The newest release that has been tested.
_NEWEST = (2, 21)


class _Refused(Exception):
    """The reason why this TensorFlow cannot use the library."""


def _load() -> Any:
    framework = Path(tf.sysconfig.get_lib()) / "libtensorflow_framework.so.2"
    try:
        # The op library does not link against the C API, so its symbols must be global when it is loaded.
        symbols = ctypes.CDLL(str(framework), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise _Refused(f"{framework} cannot be loaded ({error})") from error
    missing = [name for name in _NEEDED if not hasattr(symbols, name)]
    if missing:
        raise _Refused(f"its C API lacks {', '.join(missing)}")
    try:
        library = tf.load_op_library(str(Path(__file__).with_name("libsmdp_tensorflow.so")))
    except (tf.errors.OpError, OSError) as error:
        raise _Refused(f"the op library cannot be loaded ({error})") from error
    missing = [name for name in _OPS if not hasattr(library, name)]
    if missing:
        raise _Refused(f"it did not register the ops {', '.join(missing)}")
    return library


def _try_newer() -> None:
    if tuple(int(part) for part in tf.__version__.split(".")[:2]) <= _NEWEST:
        return
    if why := trial.why_it_fails():
        os.environ["SMDP_TENSORFLOW_OPS"] = "python"  # also for processes that this one starts
        raise _Refused(why)
    os.environ["SMDP_TENSORFLOW_OPS"] = "native"


def _load_or_replace() -> Any:
    choice = read_choice(os.environ, "SMDP_TENSORFLOW_OPS", TENSORFLOW_OPS)
    if choice == "python":
        return python_ops
    try:
        if choice is None:
            _try_newer()
        return _load()
    except _Refused as reason:
        warnings.warn(
            f"[smdp] the op library of smdp.tensorflow does not work with this TensorFlow ({tf.__version__}):"
            f" {reason}. It was tested with releases 2.13 to 2.21. smdp uses calls into Python instead:"
            " gradients are sent together after backward instead of during it, and copied two more times.",
            RuntimeWarning,
            stacklevel=2,
        )
        return python_ops


ops = _load_or_replace()
name_python_functions()
is_native = ops is not python_ops
# Not every Keras 2 has the function, and Keras 3 has the attribute only from 3.3 on.
keras_version = str(tf.keras.version() if hasattr(tf.keras, "version") else "2")
is_keras_3 = not keras_version.startswith("2")


def check_keras_backend(what: str) -> None:
    """Checks that Keras uses TensorFlow as its backend.

    Raises:
        ValueError: Keras 3 uses another backend.
    """
    backend = tf.keras.backend.backend() if is_keras_3 else "tensorflow"
    if backend != "tensorflow":
        raise ValueError(
            f"[smdp] {what} needs Keras with the TensorFlow backend, but its backend is {backend!r}. Set"
            " KERAS_BACKEND=tensorflow before Keras is imported."
        )
