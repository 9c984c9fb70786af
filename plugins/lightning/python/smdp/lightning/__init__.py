"""The Lightning plugin: a strategy that averages gradients with smdp.

Example:
    >>> from smdp.lightning import SmdpStrategy
    >>> trainer = Trainer(strategy=SmdpStrategy(compression="bf16"))  # doctest: +SKIP
"""

from __future__ import annotations

from smdp._frameworks import require

require("smdp.lightning", "lightning")

from smdp.lightning.launched import LaunchedEnvironment as LaunchedEnvironment
from smdp.lightning.preemption import PreemptionCallback as PreemptionCallback
from smdp.lightning.strategy import SmdpStrategy as SmdpStrategy

__all__ = ["LaunchedEnvironment", "PreemptionCallback", "SmdpStrategy"]
