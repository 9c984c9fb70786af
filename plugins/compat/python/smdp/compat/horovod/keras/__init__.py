"""`horovod.keras`: the same as `horovod.tensorflow.keras`."""

from __future__ import annotations

from typing import Any

from smdp.compat.horovod.refusals import no_attribute
from smdp.compat.horovod.tensorflow import keras
from smdp.compat.horovod.tensorflow.keras import *  # noqa: F403
from smdp.tensorflow.keras import callbacks as callbacks


def __getattr__(name: str) -> Any:
    if name == "global_process_set":
        return keras.global_process_set
    no_attribute("horovod.keras", name)
