"""Converts arrays of other libraries to NumPy arrays on the same memory through DLPack.

numpy.from_dlpack does not support bfloat16 and 8-bit floats. Before NumPy 2.1 it returns read-only arrays.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

# DLDeviceType of memory that the CPU can read: host memory, and pinned or managed memory of CUDA and ROCm.
_HOST = {1, 3, 11, 13}
# Maps DLDataTypeCode to the letter of NumPy's type strings.
_LETTERS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
_BFLOAT = 4
# Maps DLDataTypeCode to the name of the type in ml_dtypes.
_NAMES = {
    _BFLOAT: "bfloat16",
    7: "float8_e3m4",
    8: "float8_e4m3",
    9: "float8_e4m3b11fnuz",
    10: "float8_e4m3fn",
    11: "float8_e4m3fnuz",
    12: "float8_e5m2",
    13: "float8_e5m2fnuz",
    14: "float8_e8m0fnu",
}
_READ_ONLY = 1


# DLTensor in dlpack.h, which a capsule of DLPack 0 points to: data, device type and number, number of
# dimensions, the type's code, bits and lanes, shape, strides, byte_offset.
_TENSOR = struct.Struct("@PiiiBBHPPQ")
# The fields before it in DLManagedTensorVersioned: version, context, deleter, flags.
_HEAD = struct.Struct("@IIPPQ")


# Separate prototypes, because those of ctypes.pythonapi are shared by the whole process.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class Export:
    """An exported tensor. It is the base of the NumPy array and lives as long as the array does.

    The capsule is not marked as used, so its own destructor releases the memory.

    Attributes:
        is_versioned: Whether the library uses DLPack 1, which states whether the memory may be written.
    """

    def __init__(self, value: Any) -> None:
        try:
            self._capsule = value.__dlpack__(max_version=(1, 0))
        except TypeError:  # the library supports only DLPack 0
            self._capsule = value.__dlpack__()
        self.is_versioned = bool(_is_valid(self._capsule, b"dltensor_versioned"))
        is_read_only = True  # DLPack 0 does not state it
        if self.is_versioned:
            address = _pointer(self._capsule, b"dltensor_versioned")
            major, _, _, _, flags = _HEAD.unpack(ctypes.string_at(address, _HEAD.size))
            if major > 1:
                raise ValueError(f"it uses DLPack {major}; smdp supports DLPack 0 and 1")
            is_read_only = bool(flags & _READ_ONLY)
            address += _HEAD.size
        else:
            address = _pointer(self._capsule, b"dltensor")
        fields = _TENSOR.unpack(ctypes.string_at(address, _TENSOR.size))
        data, device, _, dimensions, code, bits, lanes, shape, strides, byte_offset = fields
        if device not in _HOST:
            raise ValueError(f"it is on a device (DLPack device type {device}); copy it to the CPU first")
        self.name, typestr = _type(code, bits, lanes)
        steps = tuple(bits // 8 * step for step in _integers(strides, dimensions)) if strides else None
        self.__array_interface__ = {
            "version": 3,
            "data": ((data or 0) + byte_offset, is_read_only),
            "shape": _integers(shape, dimensions),
            "strides": steps,
            "typestr": typestr,
        }


def _integers(address: int, count: int) -> tuple[int, ...]:
    return struct.unpack(f"@{count}q", ctypes.string_at(address, 8 * count)) if count else ()


@functools.cache
def _type(code: int, bits: int, lanes: int) -> tuple[str, str]:
    """Returns the ml_dtypes name of a type, empty for NumPy's own, and a NumPy type string of its size."""
    name = _NAMES.get(code, "")
    letter = "u" if name else _LETTERS.get(code)
    if lanes == 1 and bits % 8 == 0 and letter and (not name or bits == (16 if code == _BFLOAT else 8)):
        with contextlib.suppress(TypeError):  # NumPy has no 32-bit complex type
            return name, np.dtype(f"{letter}{bits // 8}").str
    raise ValueError(
        f"NumPy has no type for DLPack type code {code} with {bits} bits and {lanes} lanes; view it as"
        " integers"
    )


def from_dlpack(value: Any) -> npt.NDArray[Any]:
    """Returns a NumPy array on the memory of ``value``, without a copy.

    The array is read-only unless the library states that the memory may be written.

    Raises:
        ValueError: The memory is on a device, or its type is unknown. The library may raise other errors.
    """
    export = Export(value)
    array: npt.NDArray[Any] = np.asarray(export)
    if not export.name:
        return array
    try:
        import ml_dtypes

        return array.view(getattr(ml_dtypes, export.name))
    except (ModuleNotFoundError, AttributeError):
        raise ValueError(
            f"{export.name} in NumPy requires ml_dtypes, which is missing or too old:"
            " pip install -U ml-dtypes"
        ) from None


def may_be_writable(array: npt.NDArray[Any]) -> bool:
    """Returns whether an array is read-only only because DLPack 0 does not state otherwise."""
    base = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return isinstance(base, Export) and not base.is_versioned
