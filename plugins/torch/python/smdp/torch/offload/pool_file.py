"""A file without a name on a local disk, which holds tensors that have left memory."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from pathlib import Path
from typing import NamedTuple, TypeVar

from torch import Tensor

from smdp.torch.offload.free_space import FreeSpace
from smdp.torch.offload.memory_map import MemoryMap
from smdp.torch.offload.target import Target, check_directory, warn_of_memory

# What direct access asks for: addresses, offsets and lengths are multiples of this.
_ALIGNED = 4096
_CHUNK = 4 << 20  # bytes per call of the system
_GROWTH = 64 << 20
_THREADS = 2  # for writes, and as many for reads, which do not wait behind writes
_STALL_S = 300.0
_MORE_SPACE = "Free space on this disk, or name a larger one"

_Result = TypeVar("_Result")


class Memory(NamedTuple):
    """A range of memory to write, and where it goes.

    Attributes:
        at: The offset in the extent, in bytes.
        address: The address of the first byte.
        nbytes: Its length.
        owner: Keeps the memory alive.
    """

    at: int
    address: int
    nbytes: int
    owner: object


class Extent:
    """A range of a pool file, which is free again when this object is gone.

    Attributes:
        offset: Where it begins, in bytes.
        length: Its length.
        nbytes: How many of its bytes hold something.
        written: The last write; None: nothing has been written.
    """

    __slots__ = ("_freed", "length", "nbytes", "offset", "written")

    def __init__(self, offset: int, length: int, nbytes: int, freed: deque[tuple[int, int]]) -> None:
        self.offset = offset
        self.length = length
        self.nbytes = nbytes
        self.written: Future[None] | None = None
        self._freed = freed

    def __del__(self) -> None:
        """Frees the range. This may run at any place of any thread, so it takes no lock."""
        self._freed.append((self.offset, self.length))


class PoolFile:
    """Writes and reads in background threads. The file vanishes with the process, however that ends.

    Args:
        target: The directory, and the most bytes of the file.

    Raises:
        ValueError: The directory is missing, or a file cannot be created in it.
    """

    def __init__(self, target: Target) -> None:
        assert target.directory is not None
        self._directory: Path = target.directory
        self._limit = target.limit
        check_directory(target.directory)
        self._file, self.is_direct = _opened(target.directory)
        weakref.finalize(self, os.close, self._file)
        warn_of_memory(target.directory)
        self._space = FreeSpace()
        self._freed: deque[tuple[int, int]] = deque()
        self._lock = threading.Lock()
        self._moved = 0
        self._error: RuntimeError | None = None
        self._staging = threading.local()
        self._writers = ThreadPoolExecutor(_THREADS, "smdp-offload-write")
        self._readers = ThreadPoolExecutor(_THREADS, "smdp-offload-read")

    @property
    def size(self) -> int:
        """The bytes of the file."""
        return self._space.size

    @property
    def used(self) -> int:
        """The bytes of the file that are in use."""
        with self._lock:
            self._take_back()
            return self._space.size - self._space.free

    def extent(self, nbytes: int) -> Extent:
        """Returns a range of the file for some bytes.

        Raises:
            RuntimeError: The disk is full, or the file would exceed its limit.
        """
        if self._error is not None:
            raise self._error
        length = max(-(-nbytes // _ALIGNED), 1) * _ALIGNED
        with self._lock:
            self._take_back()
            offset = self._space.take(length)
            if offset is None:
                self._grow(self._space.missing(length), length)
                offset = self._space.take(length)
        assert offset is not None
        return Extent(offset, length, nbytes, self._freed)

    def write(self, extent: Extent, parts: Sequence[Memory]) -> Future[None]:
        """Begins to write memory, which must not change until the write has ended."""
        extent.written = self._writers.submit(self._write, extent, parts)
        return extent.written

    def read(self, extent: Extent) -> Future[Tensor]:
        """Begins to read an extent, once it has been written, into a new tensor of `uint8`."""
        return self._readers.submit(self._read, extent, extent.written)

    def mapped(self, extent: Extent) -> Tensor:
        """Returns an extent as a tensor of `uint8` whose pages are read on first use, and are not kept.

        Writing to the tensor does not change the file.
        """
        if extent.written is not None:
            self.wait(extent.written)
        memory = MemoryMap(extent.length, self._file, extent.offset)
        memory.__dict__["extent"] = extent
        return memory.tensor(extent.nbytes)

    def wait(self, done: Future[_Result]) -> _Result:
        """Returns the result of a write or read. A slow disk only takes longer.

        Raises:
            RuntimeError: The disk is full, has failed, or has moved nothing for five minutes.
        """
        moved, since = self._moved, time.monotonic()
        while True:
            try:
                return done.result(timeout=1.0)
            except NotDone as error:
                if done.done():
                    raise
                if self._moved != moved:
                    moved, since = self._moved, time.monotonic()
                elif time.monotonic() - since > _STALL_S:
                    raise RuntimeError(
                        f"[smdp] offload to {self._directory}: the disk has moved nothing for"
                        f" {_STALL_S:.0f} s; check the disk, or name another directory"
                    ) from error

    def _take_back(self) -> None:
        while self._freed:
            self._space.put_back(*self._freed.popleft())

    def _grow(self, missing: int, wanted: int) -> None:
        size = self._space.size
        most = missing if self._limit is None else self._limit - size
        if most < missing:
            there = max(most, 0) + wanted - missing
            reason = f"the file would exceed its limit of {self._limit} bytes"
            raise self._full(wanted, there, reason, "Raise the limit in offload")
        room = max(missing, _GROWTH if self._limit is None else min(_GROWTH, most))
        try:
            try:
                _extend(self._file, size, room)
            except OSError:
                if room == missing:
                    raise
                room = missing
                _extend(self._file, size, room)
        except OSError as error:
            there = self._there() + wanted - missing
            raise self._full(wanted, there, os.strerror(error.errno or 0)) from error
        self._space.grow(room)

    def _there(self) -> int:
        found = os.fstatvfs(self._file)
        most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        there = found.f_bavail * found.f_frsize
        return there if most == resource.RLIM_INFINITY else min(there, max(most - self._space.size, 0))

    def _full(self, wanted: int, there: int, reason: str, remedy: str = _MORE_SPACE) -> RuntimeError:
        return RuntimeError(
            f"[smdp] offload to {self._directory} needs {wanted} more bytes, and {there} are there ({reason};"
            f" the file has {self._space.size} bytes, {self._space.free} of them free)."
            f" {remedy}."
        )

    def _write(self, extent: Extent, parts: Sequence[Memory]) -> None:
        staging = self._staging_memory()
        view = memoryview(staging.buffer()).cast("B")
        for begin in range(0, extent.length, _CHUNK):
            end = min(begin + _CHUNK, extent.length)
            for part in parts:
                first, last = max(part.at, begin), min(part.at + part.nbytes, end)
                if first < last:  # without the GIL
                    ctypes.memmove(
                        staging.address + first - begin, part.address + first - part.at, last - first
                    )
            self._move(os.pwrite, view[: end - begin], extent.offset + begin, "write")

    def _read(self, extent: Extent, written: Future[None] | None) -> Tensor:
        if written is not None:
            written.result()
        memory = MemoryMap(extent.length)
        view = memoryview(memory.buffer()).cast("B")
        for begin in range(0, extent.length, _CHUNK):
            end = min(begin + _CHUNK, extent.length)
            self._move(_pread_into, view[begin:end], extent.offset + begin, "read")
        return memory.tensor(extent.nbytes)

    def _move(
        self, call: Callable[[int, memoryview, int], int], view: memoryview, offset: int, verb: str
    ) -> None:
        done = 0
        while done < len(view):
            try:
                count = call(self._file, view[done:], offset + done)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                    reason = os.strerror(error.errno)
                    self._error = self._full(len(view) - done, self._there(), reason)
                    raise self._error from error
                self._error = RuntimeError(
                    f"[smdp] offload to {self._directory}: cannot {verb} {len(view)} bytes ({error}). Check"
                    " the disk, or name another directory."
                )
                raise self._error from error
            if count == 0:
                raise RuntimeError(
                    f"[smdp] offload to {self._directory}: the file ends at {offset + done} bytes. Another"
                    " process has shortened it; name a directory of this job alone."
                )
            done += count
        self._moved += done

    def _staging_memory(self) -> MemoryMap:
        found: MemoryMap | None = getattr(self._staging, "memory", None)
        if found is None:
            found = self._staging.memory = MemoryMap(_CHUNK)
        return found


def _pread_into(file: int, view: memoryview, offset: int) -> int:
    return os.preadv(file, [view], offset)


def _opened(directory: Path) -> tuple[int, bool]:
    """Returns a new file that has no name, and whether it is read and written without the page cache."""
    last: OSError | None = None
    for direct in (os.O_DIRECT, 0):
        try:
            return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC | direct, 0o600), bool(direct)
        except OSError as error:
            last = error
    try:  # a file system without files that have no name
        file, name = tempfile.mkstemp(prefix=".smdp-offload-", dir=directory)
        os.unlink(name)
        return file, False
    except OSError:
        raise ValueError(
            f"[smdp] offload: cannot create a file in {directory} ({last}); name a directory on a local disk"
        ) from last


def _extend(file: int, size: int, more: int) -> None:
    """Reserves space, so that a full disk shows here and not in a write."""
    try:
        os.posix_fallocate(file, size, more)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENODEV):
            raise
        os.ftruncate(file, size + more)  # a file system that cannot reserve


_pools: weakref.WeakValueDictionary[Target, PoolFile] = weakref.WeakValueDictionary()


def pool_for(target: Target) -> PoolFile:
    """Returns the pool file of a target, which all features of a process share."""
    found = _pools.get(target)
    if found is None:
        found = _pools[target] = PoolFile(target)
    return found
