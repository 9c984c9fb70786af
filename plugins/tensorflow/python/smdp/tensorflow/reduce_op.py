"""How values of several ranks become one."""

from __future__ import annotations

from enum import IntEnum


class ReduceOp(IntEnum):
    """What a reduction does, numbered as in the C++ header smdp/dtype.h."""

    SUM = 0
    AVERAGE = 1
    PRODUCT = 3
    MIN = 4
    MAX = 5
