"""Arrays of other libraries by DLPack, as NumPy arrays on the same memory.

numpy.from_dlpack knows no bfloat16 and no 8-bit floats, and before 2.1 hands out read-only arrays only.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

# DLDeviceType of memory that the CPU reads: its own, and what CUDA and ROCm pin or share.
_HOST = {1, 3, 11, 13}
# DLDataTypeCode to the letter of NumPy's type strings.
_LETTERS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}
_BFLOAT = 4
# Types of ml_dtypes by code.
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


# DLTensor of dlpack.h, to which a capsule of DLPack 0 points: data, device's type and number, dimensions,
# code, bits and lanes of the type, shape, strides, byte_offset.
_TENSOR = struct.Struct("@PiiiBBHPPQ")
# What stands before it in DLManagedTensorVersioned: version, context, deleter, flags.
_HEAD = struct.Struct("@IIPPQ")


# Prototypes of our own: those of ctypes.pythonapi are everybody's.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class Export:
    """What a library has handed out: the base of the array, which lives as long.

    The capsule stays as it is, so that its own destructor gives the memory back.

    Attributes:
        is_versioned: DLPack 1, which tells whether the memory may be written.
    """

    def __init__(self, value: Any) -> None:
        try:
            self._capsule = value.__dlpack__(max_version=(1, 0))
        except TypeError:  # a library that knows DLPack 0 only
            self._capsule = value.__dlpack__()
        self.is_versioned = bool(_is_valid(self._capsule, b"dltensor_versioned"))
        is_read_only = True  # DLPack 0 does not say
        if self.is_versioned:
            address = _pointer(self._capsule, b"dltensor_versioned")
            major, _, _, _, flags = _HEAD.unpack(ctypes.string_at(address, _HEAD.size))
            if major > 1:
                raise ValueError(f"it speaks DLPack {major}, smdp DLPack 0 and 1")
            is_read_only = bool(flags & _READ_ONLY)
            address += _HEAD.size
        else:
            address = _pointer(self._capsule, b"dltensor")
        fields = _TENSOR.unpack(ctypes.string_at(address, _TENSOR.size))
        data, device, _, dimensions, code, bits, lanes, shape, strides, byte_offset = fields
        if device not in _HOST:
            raise ValueError(f"it is on a device of DLPack's type {device}; copy it to the CPU first")
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
    """Give the name of ml_dtypes' type, empty for NumPy's own, and NumPy's type string of as many bytes."""
    name = _NAMES.get(code, "")
    letter = "u" if name else _LETTERS.get(code)
    if lanes == 1 and bits % 8 == 0 and letter and (not name or bits == (16 if code == _BFLOAT else 8)):
        with contextlib.suppress(TypeError):  # complex numbers of 32 bits
            return name, np.dtype(f"{letter}{bits // 8}").str
    raise ValueError(
        f"NumPy has no type for DLPack's type {code} of {bits} bits in {lanes} lanes; view it as integers"
    )


def from_dlpack(value: Any) -> npt.NDArray[Any]:
    """A NumPy array on the memory of ``value``, never a copy; read-only unless the library says otherwise.

    Raises:
        ValueError: The memory is on a device, or its type is unknown. The library may raise others.
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
            f"{export.name} in NumPy needs ml_dtypes, which is missing or too old: pip install -U ml-dtypes"
        ) from None


def may_be_writable(array: npt.NDArray[Any]) -> bool:
    """Tell whether an array is read-only only because DLPack 0 does not say more."""
    base = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return isinstance(base, Export) and not base.is_versioned
