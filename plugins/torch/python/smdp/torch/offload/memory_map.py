"""Memory whose pages are aligned for direct reads and writes, as tensors."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

import torch
from torch import Tensor

_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class MemoryMap:
    """A mapping, which ends with this object. Unlike `mmap.mmap`, it holds no file descriptor of its own.

    Args:
        length: Number of bytes.
        file: A file descriptor; None: new memory. What is written to a mapping of a file stays in memory.
        offset: Where in the file the mapping begins, in bytes.
    """

    def __init__(self, length: int, file: int | None = None, offset: int = 0) -> None:
        self.length = length
        self.address = 0
        flags = mmap.MAP_PRIVATE | (mmap.MAP_ANONYMOUS if file is None else 0)
        found = _libc.mmap(
            None, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1 if file is None else file, offset
        )
        if found == _FAILED:
            number = ctypes.get_errno()
            what = "memory" if number == errno.ENOMEM else "a mapping"
            raise MemoryError(f"[smdp] offloading needs {what} of {length} bytes: {os.strerror(number)}")
        self.address = found

    def buffer(self) -> ctypes.Array[ctypes.c_char]:
        """Returns the mapping as a buffer, which keeps the mapping alive."""
        found = (ctypes.c_char * self.length).from_address(self.address)
        found.__dict__["owner"] = self
        return found

    def tensor(self, nbytes: int) -> Tensor:
        """Returns the first bytes as a tensor of `uint8`, which keeps the mapping alive."""
        return torch.frombuffer(self.buffer(), dtype=torch.uint8, count=nbytes)

    def __del__(self) -> None:
        """Ends the mapping."""
        if self.address:
            _libc.munmap(self.address, self.length)
