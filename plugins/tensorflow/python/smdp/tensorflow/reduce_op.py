"""How values of several ranks become one."""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class ReduceOp(IntEnum):
    """What a reduction does, numbered as in the C++ header smdp/dtype.h."""

    SUM = 0
    AVERAGE = 1
    PRODUCT = 3
    MIN = 4
    MAX = 5


def reduce_op(value: Any) -> ReduceOp:
    """A ReduceOp from what users pass; None means AVERAGE.

    Raises:
        ValueError: It is none.
    """
    if value is None:
        return ReduceOp.AVERAGE
    try:
        return ReduceOp(value)
    except ValueError:
        allowed = ", ".join(f"ReduceOp.{one.name}" for one in ReduceOp)
        raise ValueError(f"[smdp] op is {value!r}; allowed: {allowed}.") from None
