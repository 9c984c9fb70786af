"""`horovod.keras.callbacks`."""

from __future__ import annotations

from smdp.tensorflow.keras.callbacks import *  # noqa: F403
