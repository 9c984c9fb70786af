"""Addresses, shapes and element types of the arrays that users pass to a collective."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _core, _dlpack


class DType(IntEnum):
    """Element types, numbered as in the C++ header smdp/dtype.h."""

    BOOL = 0
    UINT8 = 1
    INT8 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    FLOAT16 = 6
    BFLOAT16 = 7
    FLOAT32 = 8
    FLOAT64 = 9
    COMPLEX32 = 10
    COMPLEX64 = 11
    COMPLEX128 = 12
    UINT16 = 13
    UINT32 = 14
    UINT64 = 15
    FLOAT8 = 16
    FLOAT8_E4M3FN = 17
    FLOAT8_E4M3FNUZ = 18
    FLOAT8_E5M2 = 19
    FLOAT8_E5M2FNUZ = 20
    FLOAT8_E8M0FNU = 21


# Keyed by NumPy's name of the dtype; ml_dtypes' types have names as well.
_BY_NAME = {
    "bool": DType.BOOL,
    "uint8": DType.UINT8,
    "int8": DType.INT8,
    "int16": DType.INT16,
    "int32": DType.INT32,
    "int64": DType.INT64,
    "float16": DType.FLOAT16,
    "bfloat16": DType.BFLOAT16,
    "float32": DType.FLOAT32,
    "float64": DType.FLOAT64,
    "complex64": DType.COMPLEX64,
    "complex128": DType.COMPLEX128,
    "uint16": DType.UINT16,
    "uint32": DType.UINT32,
    "uint64": DType.UINT64,
}
_BY_DTYPE: dict[Any, int] = {}


def _code(dtype: np.dtype[Any]) -> int:
    name = dtype.name
    if name in _BY_NAME and dtype.isnative:
        code = int(_BY_NAME[name])
    elif name.startswith("float8") and dtype.itemsize == 1:
        code = int(DType.__members__.get(name.upper(), DType.FLOAT8))
    else:
        raise ValueError(
            f"[smdp] dtype {dtype} is not supported; allowed: {', '.join(_BY_NAME)} and 8-bit floats,"
            " in native byte order."
        )
    _BY_DTYPE[dtype] = code
    return code


class Buffer(NamedTuple):
    """A contiguous block of memory, which ``array`` keeps alive."""

    pointer: int
    shape: tuple[int, ...]
    elements: int
    dtype: int
    array: npt.NDArray[Any]


def as_array(value: Any) -> npt.NDArray[Any]:
    """Returns a NumPy view of a value that supports the buffer protocol, ``__array_interface__`` or DLPack.

    Raises:
        ValueError: The value is not in host memory, has no such interface, or has a type that NumPy lacks.
    """
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__array_interface__"):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        if getattr(value, "is_neg", bool)():  # torch tensor with the negative bit, which DLPack ignores
            raise ValueError(
                f"[smdp] the {type(value).__name__} stores its values negated, like the imaginary part of a"
                " conjugate; pass the result of its resolve_neg()."
            )
        try:
            return _dlpack.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError, AssertionError) as error:
            raise ValueError(
                f"[smdp] the {type(value).__name__} does not provide a buffer that smdp can use: {error}"
            ) from error
    try:
        return (
            np.frombuffer(value, dtype=np.uint8)
            if isinstance(value, bytes | bytearray)
            else np.asarray(memoryview(value))
        )
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"[smdp] expected an array (NumPy, DLPack, or buffer protocol), but got {type(value).__name__}."
        ) from error


def view(value: Any, *, writes: bool, what: str) -> Buffer:
    """Returns a Buffer that describes ``value``.

    Args:
        value: A C-contiguous array in host memory.
        writes: Whether the collective writes to it.
        what: Its name in messages.

    Raises:
        ValueError: The array is not contiguous, is read-only but written to, or has an unsupported type.
    """
    if writes and isinstance(value, np.generic):
        raise ValueError(
            f"[smdp] {what} is a NumPy scalar ({type(value).__name__}); the collective cannot write to it."
            " Pass an array, or a list of arrays if the call takes several."
        )
    array = value if type(value) is np.ndarray else as_array(value)
    flags = array.flags
    if not flags.c_contiguous:
        raise ValueError(f"[smdp] {what} is not contiguous; convert it with numpy.ascontiguousarray().")
    if writes and not flags.writeable:
        if hasattr(value, "__dlpack__") and _dlpack.may_be_writable(array):
            raise ValueError(
                f"[smdp] {what} may be read-only: {type(value).__name__} uses DLPack older than 1.0, which"
                " does not state whether memory is writable. Pass a NumPy array on the same memory."
            )
        raise ValueError(f"[smdp] {what} is read-only, but the collective writes to it; pass a copy.")
    dtype = _BY_DTYPE.get(array.dtype)
    if dtype is None:
        dtype = _code(array.dtype)
    pointer = _core.address_of(array.__array_struct__)  # seven times faster than __array_interface__
    return Buffer(pointer, array.shape, array.size, dtype, array)
