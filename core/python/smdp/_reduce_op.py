"""What a reduction does, and on which element types it is defined."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

import numpy as np

from . import _core
from ._buffers import DType
from ._shown import shown


class ReduceOp(IntEnum):
    """What a reduction does, numbered as in the C++ header smdp/dtype.h.

    On bool SUM and MAX are "or", PRODUCT and MIN "and". Integers wrap. 16-bit floats are summed in float32.
    """

    SUM = 0
    """The sum over all ranks."""
    AVG = 1
    """SUM divided by the size of the group; of integers truncated towards zero."""
    PREMUL_SUM = 2
    """Every rank's input times its own factor, then SUM."""
    PRODUCT = 3
    """The product over all ranks."""
    MIN = 4
    """The least value; NaN if some rank has NaN. Not for complex numbers."""
    MAX = 5
    """The greatest value; NaN if some rank has NaN. Not for complex numbers."""
    BAND = 6
    """Bitwise "and" of integers and bool."""
    BOR = 7
    """Bitwise "or" of integers and bool."""
    BXOR = 8
    """Bitwise "exclusive or" of integers and bool."""


SUM = ReduceOp.SUM
AVG = ReduceOp.AVG
PREMUL_SUM = ReduceOp.PREMUL_SUM
PRODUCT = ReduceOp.PRODUCT
MIN = ReduceOp.MIN
MAX = ReduceOp.MAX
BAND = ReduceOp.BAND
BOR = ReduceOp.BOR
BXOR = ReduceOp.BXOR

# The first and last of the element types on which it is defined.
_DEFINED = {
    SUM: (DType.BOOL, DType.COMPLEX128),
    AVG: (DType.UINT8, DType.COMPLEX128),
    PREMUL_SUM: (DType.UINT8, DType.COMPLEX128),
    PRODUCT: (DType.BOOL, DType.COMPLEX128),
    MIN: (DType.BOOL, DType.FLOAT64),
    MAX: (DType.BOOL, DType.FLOAT64),
    BAND: (DType.BOOL, DType.INT64),
    BOR: (DType.BOOL, DType.INT64),
    BXOR: (DType.BOOL, DType.INT64),
}


def as_op(op: int | np.integer[Any]) -> ReduceOp:
    """Give the reduction of this number.

    Raises:
        ValueError: There is none, or it is another library's, whose numbers mean something else.
    """
    if type(op) is ReduceOp:  # the usual one, and quickly
        return op
    if (type(op) is int or isinstance(op, np.integer)) and op in _DEFINED:
        return ReduceOp(int(op))
    names = ", ".join(f"smdp.{one.name}" for one in ReduceOp)
    raise ValueError(f"[smdp] op = {shown(op)} is not valid; allowed: {names}")


def check_defined(op: int, dtypes: Iterable[int], call: str) -> None:
    """Refuse what the core would, for calls that start several operations: none may start before.

    Raises:
        ValueError: The reduction is not defined on one of the element types.
    """
    first, last = _DEFINED[ReduceOp(op)]
    for dtype in dtypes:
        if not first <= dtype <= last:
            fitting = "float32" if last >= DType.FLOAT32 else "int64"
            raise ValueError(
                f"[smdp] {call}: {ReduceOp(op).name} is not defined on {_core.dtype_name(dtype)}."
                f" Convert the data to a type that supports it, such as {fitting}."
            )
