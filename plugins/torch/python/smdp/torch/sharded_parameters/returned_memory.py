"""Returns memory of gathered parameters to the system as soon as it is free."""

from __future__ import annotations

import contextlib
import ctypes

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of glibc's malloc.h
_LARGE = 1 << 20  # bytes


def return_large_tensors() -> None:
    """Makes the C library return large tensors on the CPU when they are freed. It affects the whole process.

    glibc keeps freed tensors of up to 32 MiB for later ones. Between small tensors that stay, most gathered
    parameters then do not fit, so a rank would hold several times as much as its shards and gathered units.
    """
    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)


def return_freed_memory() -> None:
    """Returns all memory that is free at this moment."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
