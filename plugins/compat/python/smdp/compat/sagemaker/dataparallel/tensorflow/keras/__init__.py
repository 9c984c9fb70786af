"""`smdistributed.dataparallel.tensorflow.keras`."""

from __future__ import annotations

from smdp.tensorflow.keras import *  # noqa: F403
from smdp.tensorflow.keras import __all__ as __all__
from smdp.tensorflow.keras import callbacks as callbacks
