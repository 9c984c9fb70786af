"""Lightning plugin: a strategy on smdp's gradient reducer.

Example:
    >>> from smdp.lightning import SmdpStrategy
    >>> trainer = Trainer(strategy=SmdpStrategy(compression="bf16"))  # doctest: +SKIP
"""

from __future__ import annotations

try:
    import lightning  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "lightning":
        raise
    raise ImportError('smdp.lightning needs Lightning: pip install "smdp[lightning]"') from error

from smdp.lightning.strategy import SmdpStrategy as SmdpStrategy

__all__ = ["SmdpStrategy"]
