"""Reduction operations, and the element types they are defined on."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

import numpy as np

from . import _core
from ._buffers import DType
from ._shown import shown


class ReduceOp(IntEnum):
    """Reduction operation, with the numbers of the C++ header smdp/dtype.h.

    On bool, SUM and MAX are a logical "or", PRODUCT and MIN a logical "and". Integers wrap around on
    overflow. 16-bit floats are accumulated in float32.
    """

    SUM = 0
    """The sum over all ranks."""
    AVG = 1
    """SUM divided by the size of the group; integers are truncated toward zero."""
    PREMUL_SUM = 2
    """The sum of every rank's input times that rank's own factor."""
    PRODUCT = 3
    """The product over all ranks."""
    MIN = 4
    """The smallest value; NaN if any rank has NaN. Not defined on complex numbers."""
    MAX = 5
    """The largest value; NaN if any rank has NaN. Not defined on complex numbers."""
    BAND = 6
    """Bitwise "and"; defined on integers and bool."""
    BOR = 7
    """Bitwise "or"; defined on integers and bool."""
    BXOR = 8
    """Bitwise "exclusive or"; defined on integers and bool."""


SUM = ReduceOp.SUM
AVG = ReduceOp.AVG
PREMUL_SUM = ReduceOp.PREMUL_SUM
PRODUCT = ReduceOp.PRODUCT
MIN = ReduceOp.MIN
MAX = ReduceOp.MAX
BAND = ReduceOp.BAND
BOR = ReduceOp.BOR
BXOR = ReduceOp.BXOR

# The first and last element type that each reduction is defined on.
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
    """Returns the ReduceOp with this number.

    Raises:
        ValueError: No reduction has this number, or it is another library's enum, which may use the same
            number for a different reduction.
    """
    if type(op) is ReduceOp:  # fast path for the common case
        return op
    if (type(op) is int or isinstance(op, np.integer)) and op in _DEFINED:
        return ReduceOp(int(op))
    names = ", ".join(f"smdp.{one.name}" for one in ReduceOp)
    raise ValueError(f"[smdp] op = {shown(op)} is not valid; allowed: {names}")


def check_defined(op: int, dtypes: Iterable[int], call: str) -> None:
    """Checks that a reduction is defined on all element types of a coalesced call.

    The core makes the same check, but per operation, when others of the call may have started already.

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
