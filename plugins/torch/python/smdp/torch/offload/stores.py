"""Where saved tensors go: from the CPU to a pool file, from a GPU to pinned memory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import torch
from torch import Tensor

from smdp.torch.offload.pool_file import Extent, Memory, PoolFile, pool_for
from smdp.torch.offload.saved_tensors import Store
from smdp.torch.offload.target import Target, target_of


def store_for(target: Target, device: torch.device) -> Store:
    """Returns where the saved tensors of a device go.

    Raises:
        ValueError: The place is not for tensors of this device, or a file cannot be created there.
    """
    if target.directory is not None and device.type == "cpu":
        return DiskStore(pool_for(target))
    if target.directory is None and device.type == "cuda":
        return HostStore(device)
    if device.type == "cpu":
        raise ValueError(
            '[smdp] offload = "host" moves tensors of a GPU to memory of the host, and this model is on the'
            ' CPU, whose memory is that of the host. Pass offload="disk:/DIRECTORY", with a directory on'
            " a local disk."
        )
    raise ValueError(
        f"[smdp] offload to {target.directory} is for models on the CPU, and this model is on {device}. Pass"
        ' offload="host".'
    )


def disk_pool(offload: object) -> PoolFile:
    """Returns the pool file that a value of `offload=` names, for what is on the CPU.

    Raises:
        ValueError: The value is not valid, is "host", or a file cannot be created there.
    """
    target = target_of(offload)
    if target.directory is None:
        raise ValueError(
            '[smdp] offload = "host" is for models on a GPU, and the state of this optimizer is in the memory'
            ' of the host. Pass offload="disk:/DIRECTORY", with a directory on a local disk.'
        )
    return pool_for(target)


class DiskStore:
    """Moves tensors on the CPU to a pool file.

    Args:
        pool: The file.
    """

    def __init__(self, pool: PoolFile) -> None:
        self._pool = pool

    def put(self, values: Tensor, then: Callable[[], None]) -> _OnDisk:
        """Begins to write a tensor; see `Store`."""
        extent = self._pool.extent(values.numel())
        done = self._pool.write(extent, [Memory(0, values.data_ptr(), values.numel(), values)])
        done.add_done_callback(lambda _: then() if _has_succeeded(done) else None)
        return _OnDisk(self._pool, extent, done)


class _OnDisk:
    def __init__(self, pool: PoolFile, extent: Extent, done: Future[None]) -> None:
        self._pool = pool
        self._extent = extent
        self._done = done

    def is_there(self) -> bool:
        return self._done.done() and _has_succeeded(self._done)

    def wait(self) -> None:
        self._pool.wait(self._done)

    def cancel(self) -> None:
        self._done.cancel()

    def fetch(self) -> Callable[[], Tensor]:
        read = self._pool.read(self._extent)
        return lambda: self._pool.wait(read)


def _has_succeeded(done: Future[None]) -> bool:
    return not done.cancelled() and done.exception() is None


class HostStore:
    """Moves tensors of a CUDA device to pinned memory, on streams of its own.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out = torch.cuda.Stream(device)
        self._back = torch.cuda.Stream(device)

    def put(self, values: Tensor, then: Callable[[], None]) -> _OnHost:
        """Begins to copy a tensor, whose memory is released once something waits for the copy."""
        room = torch.empty(values.numel(), dtype=torch.uint8, pin_memory=True)
        self._out.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._out):
            room.copy_(values, non_blocking=True)
            values.record_stream(self._out)
            return _OnHost(room, self._out.record_event(), self._device, self._back)


class _OnHost:
    def __init__(
        self, room: Tensor, copied: torch.cuda.Event, device: torch.device, back: torch.cuda.Stream
    ) -> None:
        self._room = room
        self._copied = copied
        self._device = device
        self._back = back

    def is_there(self) -> bool:
        return bool(self._copied.query())

    def wait(self) -> None:
        self._copied.synchronize()

    def cancel(self) -> None:
        """Does nothing: a copy that has been queued takes place."""

    def fetch(self) -> Callable[[], Tensor]:
        self._back.wait_event(self._copied)
        with torch.cuda.stream(self._back):
            found = torch.empty(self._room.numel(), dtype=torch.uint8, device=self._device)
            found.copy_(self._room, non_blocking=True)
            done = self._back.record_event()

        def arrived() -> Tensor:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(done)
            found.record_stream(stream)
            return found

        return arrived
