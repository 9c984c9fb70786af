"""The op library, loaded into the TensorFlow that is there."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import tensorflow as tf

# What the library takes from TensorFlow's C API and not every release need have.
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


def _refuse(reason: str) -> ImportError:
    return ImportError(
        f"[smdp] smdp.tensorflow does not work with this TensorFlow ({tf.__version__}): {reason}."
        " Tried are the releases from 2.13 to 2.21."
    )


def _load() -> Any:
    framework = Path(tf.sysconfig.get_lib()) / "libtensorflow_framework.so.2"
    try:
        # The op library leaves the C API's symbols open: they must be global when it is loaded.
        symbols = ctypes.CDLL(str(framework), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise _refuse(f"{framework} cannot be loaded ({error})") from error
    missing = [name for name in _NEEDED if not hasattr(symbols, name)]
    if missing:
        raise _refuse(f"its C API lacks {', '.join(missing)}")
    library = tf.load_op_library(str(Path(__file__).with_name("libsmdp_tensorflow.so")))
    missing = [name for name in _OPS if not hasattr(library, name)]
    if missing:
        raise _refuse(f"it did not take the ops {', '.join(missing)}")
    return library


ops = _load()
# Keras 2 does not tell everywhere.
keras_version = str(getattr(tf.keras, "__version__", "2"))
is_keras_3 = not keras_version.startswith("2")
