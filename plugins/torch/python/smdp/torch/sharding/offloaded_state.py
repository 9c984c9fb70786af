"""The state of this rank's pieces in a file on a local disk, except while they are updated."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.offload.pool_file import Extent, Memory, PoolFile
from smdp.torch.sharding.shard_layout import ShardLayout
from smdp.torch.sharding.sharded_state import ShardedState

_AT = 64  # where tensors begin, as torch allocates them
_AHEAD = 2  # fusion buffers that are read before their update, and written after it, at the same time


class _Place(NamedTuple):
    """Where a tensor of the state is: under a key of an optimizer's state, or a master itself."""

    owner: dict[Any, Any] | Parameter
    key: Any = None

    def get(self) -> Tensor:
        found: Tensor = self.owner.data if isinstance(self.owner, Parameter) else self.owner[self.key]
        return found

    def put(self, tensor: Tensor) -> None:
        if isinstance(self.owner, Parameter):
            self.owner.data = tensor
        else:
            self.owner[self.key] = tensor

    def mark(self) -> tuple[int, int]:
        """Returns what changes if a script replaces the tensor, or writes to it."""
        tensor = self.owner if isinstance(self.owner, Parameter) else self.owner[self.key]
        return tensor.data_ptr(), tensor._version


@dataclass(frozen=True)
class _Slot:
    """A tensor in a file: its form, and the mark of what stands for it in memory."""

    place: _Place
    at: int
    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    mark: tuple[int, int] = (0, 0)

    def within(self, memory: Tensor) -> Tensor:
        values = (
            memory[self.at :].view(self.dtype) if memory.numel() > self.at else memory[:0].view(self.dtype)
        )
        return values.as_strided(self.shape, self.strides, values.storage_offset())


class OffloadedState:
    """Moves the state of each fusion buffer to a file after its update, and back ahead of the next one.

    In between, the state has tensors whose memory is the file. Their pages are read when something reads
    them, as a checkpoint does, and the system may drop them at any time. What a script writes to them
    counts if it replaces them or changes them by operations of torch. Writes through `.data`, `.numpy()` or a
    pointer are not seen, and the next update drops them.

    Args:
        pool: The file.
        layout: The fusion buffers.
        state: Has the pieces.
        optimizer: The wrapped optimizer, whose state this is.
    """

    def __init__(
        self, pool: PoolFile, layout: ShardLayout, state: ShardedState, optimizer: Optimizer
    ) -> None:
        self._pool = pool
        self._layout = layout
        self._state = state
        self._optimizer = optimizer
        self._extents: dict[int, Extent] = {}  # by fusion buffer
        self._slots: dict[int, list[_Slot]] = {}  # of the buffers that are away
        self._reads: dict[int, Future[Tensor]] = {}
        self._writes: dict[int, list[_Slot]] = {}  # whose tensors are still in memory
        self._order: list[int] = []  # of the last update
        self._updated: list[int] = []
        self._is_new = False

    def begin(self) -> None:
        """Begins an update, in which buffers probably come in the order of the last one."""
        self._order, self._updated = self._updated, []
        for number in self._order[:_AHEAD]:
            self._begin_to_read(number)

    def bring(self, number: int) -> None:
        """Brings the state of a fusion buffer into memory, and begins to read those that come next."""
        self._updated.append(number)
        if number in self._order:
            place = self._order.index(number)
            for each in self._order[place : place + 1 + _AHEAD]:
                self._begin_to_read(each)
        self._bring(number)

    def _bring(self, number: int) -> None:
        self._finish_write(number)
        self._begin_to_read(number)
        if number not in self._reads:
            return
        memory = self._pool.wait(self._reads.pop(number))
        for slot in self._slots.pop(number):
            if slot.place.mark() == slot.mark:
                slot.place.put(slot.within(memory))
            else:  # a script has replaced it or written to it, which counts
                slot.place.put(slot.place.get().clone())

    def put_away(self, numbers: Iterable[int]) -> None:
        """Begins to write the state of fusion buffers.

        Raises:
            RuntimeError: The disk is full or has failed.
        """
        for number in numbers:
            self._bring(number)  # unless it is there
            slots, parts, size = self._described(number)
            if not slots:
                continue
            extent = self._extents.get(number)
            if extent is None or extent.nbytes != size:
                extent = self._extents[number] = self._pool.extent(size)
                self._is_new = True
            self._pool.write(extent, parts)
            self._writes[number] = slots
            while len(self._writes) > _AHEAD:
                self._finish_write(next(iter(self._writes)))

    def end(self) -> None:
        """Waits until everything has been written, and releases its memory."""
        for number in list(self._writes):
            self._finish_write(number)
        if self._is_new:  # tensors that the optimizer has made itself, in small pieces of the heap
            self._is_new = False
            with contextlib.suppress(AttributeError):  # not the GNU C library
                ctypes.CDLL(None).malloc_trim(0)

    def put_all_away(self) -> None:
        """Writes what is in memory, after a state was loaded."""
        for number in range(self._layout.size):
            self.put_away([number])
        self.end()

    def _begin_to_read(self, number: int) -> None:
        if number in self._slots and number not in self._reads:
            self._reads[number] = self._pool.read(self._extents[number])

    def _finish_write(self, number: int) -> None:
        slots = self._writes.pop(number, None)
        if slots is None:
            return
        memory = self._pool.mapped(self._extents[number])
        for slot in slots:
            slot.place.put(slot.within(memory))
        self._slots[number] = [_marked(slot) for slot in slots]

    def _described(self, number: int) -> tuple[list[_Slot], list[Memory], int]:
        """Returns the tensors of a buffer's state, where their memory is, and the bytes of all."""
        slots, parts, at = [], [], 0
        for place in self._places(number):
            tensor = place.get()
            slots.append(_Slot(place, at, tensor.dtype, tensor.shape, tensor.stride()))
            parts.append(Memory(at, tensor.data_ptr(), tensor.nbytes, tensor))
            at += -(-tensor.nbytes // _AT) * _AT
        return slots, parts, at

    def _places(self, number: int) -> Iterator[_Place]:
        for index in self._layout.members(number):
            for piece in self._state.pieces.get(index, ()):
                if self._state.is_master(piece):
                    yield _Place(piece)
                state = self._optimizer.state.get(piece, {})
                for key, value in state.items():
                    if self._state.is_cut(key, value, piece.shape) and _is_plain(value):
                        yield _Place(state, key)


def _marked(slot: _Slot) -> _Slot:
    return _Slot(slot.place, slot.at, slot.dtype, slot.shape, slot.strides, slot.place.mark())


def _is_plain(tensor: Tensor) -> bool:
    """Returns whether a tensor is on the CPU and fills its memory without gaps."""
    span = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    is_dense = tensor.layout is torch.strided and tensor.is_cpu and tensor.numel() > 0
    return type(tensor) is Tensor and is_dense and span == tensor.numel()
