"""Returns memory of tensors on the CPU to the system as soon as it is free."""

from __future__ import annotations

import contextlib
import ctypes
import os

# Options of mallopt().
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGE = 1 << 20  # bytes
_LARGEST = 32 << 20  # what glibc itself sets the limit to once a tensor of this size was freed

_libc = ctypes.CDLL(None)


def return_large_tensors() -> None:
    """Makes the C library return tensors to the system when they are freed, if they are large and made now.

    glibc keeps freed tensors of up to 32 MiB for later ones. Tensors that leave one by one are gaps there
    between those that stay, which most later ones do not fit into. All threads are affected, and each such
    tensor costs new pages, so `keep_large_tensors()` ends it.
    """
    with contextlib.suppress(AttributeError):  # only glibc has it
        _libc.mallopt(_MMAP_THRESHOLD, min(_LARGE, _limit_of_process()))


def keep_large_tensors() -> None:
    """Makes the C library keep the memory of tensors that are made from now on for later ones.

    The limits that the environment sets by MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ then hold again.
    """
    with contextlib.suppress(AttributeError):
        _libc.mallopt(_MMAP_THRESHOLD, _limit_of_process())
        if "MALLOC_TRIM_THRESHOLD_" not in os.environ:
            _libc.mallopt(_TRIM_THRESHOLD, 2 * _LARGEST)  # as glibc sets it with the limit


def _limit_of_process() -> int:
    found = os.environ.get("MALLOC_MMAP_THRESHOLD_", "")
    return int(found) if found.isdecimal() else _LARGEST


def return_freed_memory() -> None:
    """Returns all memory that is free at this moment."""
    with contextlib.suppress(AttributeError):
        _libc.malloc_trim(0)
