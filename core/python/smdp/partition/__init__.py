"""How a model is cut into stages; so far the trace that every cut starts from."""

from __future__ import annotations

from smdp.partition.trace import Tied as Tied
from smdp.partition.trace import Trace as Trace
from smdp.partition.trace import Unit as Unit

__all__ = ["Tied", "Trace", "Unit"]
