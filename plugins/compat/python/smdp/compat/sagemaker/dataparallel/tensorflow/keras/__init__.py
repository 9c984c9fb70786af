"""`smdistributed.dataparallel.tensorflow.keras`."""

from __future__ import annotations

from smdp.compat.sagemaker.dataparallel.tensorflow import gradients
from smdp.tensorflow.keras import *  # noqa: F403
from smdp.tensorflow.keras import __all__ as __all__

DistributedOptimizer = gradients.DistributedOptimizer  # type: ignore[assignment]
