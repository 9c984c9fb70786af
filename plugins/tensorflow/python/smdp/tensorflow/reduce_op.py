"""Reduction operations."""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class ReduceOp(IntEnum):
    """The operation of a reduction. The numbers are those of the C++ header smdp/dtype.h."""

    SUM = 0
    AVERAGE = 1
    PRODUCT = 3
    MIN = 4
    MAX = 5


def reduce_op(value: Any) -> ReduceOp:
    """Returns the ReduceOp for a user's value; None means AVERAGE.

    Raises:
        ValueError: It is not a reduction operation.
    """
    if value is None:
        return ReduceOp.AVERAGE
    try:
        return ReduceOp(value)
    except ValueError:
        allowed = ", ".join(f"ReduceOp.{one.name}" for one in ReduceOp)
        raise ValueError(f"[smdp] op is {value!r}; allowed: {allowed}.") from None
