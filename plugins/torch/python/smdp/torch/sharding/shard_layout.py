"""Which parts of each parameter this rank owns, and flat memory for parameters and means."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter

from smdp.torch.sharding.joined_reducers import JoinedGather, JoinedReducers

# Optimizers make several passes over each piece. One of this size and its temporary tensors stay in a cache,
# and are too small for allocations that map memory.
_PIECE_BYTES = 1 << 20


class Piece(NamedTuple):
    """A range of a parameter's elements, in memory order, that this rank owns.

    Attributes:
        begin: The first element.
        end: The element after the last one.
    """

    begin: int
    end: int


class _Form(NamedTuple):
    """What a parameter must keep while it is in a layout."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: list[int]  # of the dimensions that have more than one element


class CommonMemory(Protocol):
    """Memory that the ranks of a host have in common."""

    def take(self, count: int, dtype: torch.dtype) -> Tensor:
        """Returns the next part of the memory, as a one-dimensional tensor."""

    def await_host(self) -> None:
        """Waits until all ranks of this host have called it."""


class ShardLayout:
    """The fusion buffers of a sharded reducer, seen from the parameters.

    Parameters of a buffer move into flat memory that is laid out like the buffer, so that they travel without
    being copied. A large parameter, which has its own buffer, stays where it is.

    Args:
        reducer: The reducers of the gradients.
        parameters: The parameters, by index. Each is dense; see `is_dense()`.
        names: Their names.
        whole: The indices of the parameters that the reducer does not cut.
        common: Memory that the ranks of a host have in common, into which all parameters move. None: each
            rank has its own.

    Attributes:
        parameters: The parameters, by index.
        names: Their names.
        pieces: The pieces of each parameter that this rank owns, by index.
        whole: The indices of the parameters that are not cut. Their pieces have the parameter's shape.
    """

    def __init__(
        self,
        reducer: JoinedReducers,
        parameters: Sequence[Parameter],
        names: Sequence[str],
        whole: Collection[int] = (),
        common: CommonMemory | None = None,
    ) -> None:
        self.whole = frozenset(whole)
        self._reducer = reducer
        self._common = common
        self.parameters = parameters
        self.names = names
        self._buffers = reducer.sharded_buffers
        self.pieces: list[list[Piece]] = [[] for _ in parameters]
        self._place: dict[int, tuple[int, int]] = {}  # buffer and offset of each parameter, by index
        for number, buffer in enumerate(self._buffers):
            for index, offset, count in buffer.members:
                self._place[index] = (number, offset)
                for begin, end in buffer.owned:
                    first, last = max(begin - offset, 0), min(end - offset, count)
                    is_whole = index in self.whole
                    size = max(count, 1) if is_whole else _PIECE_BYTES // parameters[index].element_size()
                    for start in range(first, last, size):
                        self.pieces[index].append(Piece(start, min(start + size, last)))
        self._forms = [_form(parameter) for parameter in parameters]
        self._memory: dict[int, memoryview] = {}  # by buffer, unless its parameter is alone in it
        self._flat = [self._flattened(number) for number in range(len(self._buffers))]

    @property
    def size(self) -> int:
        """The number of fusion buffers."""
        return len(self._buffers)

    def members(self, number: int) -> list[int]:
        """Returns the indices of the parameters in a fusion buffer."""
        return [index for index, _, _ in self._buffers[number].members]

    def buffer_of(self, index: int) -> int:
        """Returns the number of the fusion buffer of a parameter."""
        return self._place[index][0]

    def is_alone(self, index: int) -> bool:
        """Returns whether a gradient is summed in its own memory."""
        return self._buffers[self._place[index][0]].is_alone

    def views(self, index: int) -> list[Tensor]:
        """Returns views of this rank's pieces of a parameter, one-dimensional if it is cut."""
        number, offset = self._place[index]
        return [
            self.shaped(index, self._flat[number][offset + piece.begin : offset + piece.end])
            for piece in self.pieces[index]
        ]

    def shaped(self, index: int, piece: Tensor) -> Tensor:
        """Returns a piece in the form in which the optimizer updates it, given its values in memory order."""
        if index not in self.whole:
            return piece
        parameter = self.parameters[index]
        return piece.as_strided(parameter.shape, parameter.stride(), piece.storage_offset())

    def means(self, index: int, lent: Tensor | None, own: Tensor | None = None) -> list[Tensor]:
        """Returns views of this rank's pieces of a mean, which have these values until the next step.

        Args:
            index: The parameter's index.
            lent: The gradient that this rank handed over, in whose memory a large one is summed.
            own: Memory in which its pieces were summed instead, side by side. None: there is none.
        """
        if own is not None:
            return list(own.split([piece.end - piece.begin for piece in self.pieces[index]]))
        if not self.pieces[index]:
            return []
        number, offset = self._place[index]
        buffer = self._buffers[number]
        if buffer.is_alone and lent is not None:
            flat = flattened(lent)
            return [flat[piece.begin : piece.end] for piece in self.pieces[index]]
        dtype = self._forms[index].dtype
        memory = (ctypes.c_byte * (buffer.count * dtype.itemsize)).from_address(self._reducer.means(number))
        memory.__dict__["reducer"] = self._reducer  # it owns the memory, and lives as long as the views
        flat = torch.frombuffer(memory, dtype=dtype)
        return [flat[offset + piece.begin : offset + piece.end] for piece in self.pieces[index]]

    def cut(self, index: int, tensor: Tensor) -> list[Tensor]:
        """Returns flat copies of this rank's pieces of a tensor that has a parameter's shape."""
        if tensor.stride() != self.parameters[index].stride() or not tensor.is_cpu:
            tensor = self.empty(index, tensor.dtype).copy_(tensor)
        flat = flattened(tensor)
        return [flat[piece.begin : piece.end].clone() for piece in self.pieces[index]]

    def empty(self, index: int, dtype: torch.dtype) -> Tensor:
        """Returns a new tensor that is laid out like a parameter."""
        parameter = self.parameters[index]
        return torch.empty_strided(parameter.shape, parameter.stride(), dtype=dtype)

    def gather(self) -> JoinedGather:
        """Starts sending the pieces of all ranks to all ranks, buffer by buffer. Collective.

        Pieces may be updated from now on. In common memory, this waits until no other rank uses them.
        """
        if self._common is not None:
            self._common.await_host()
            for index in range(len(self.parameters)):
                self._bring_back(index, self.pieces[index])  # the ranks that update them bring the others
        return self._reducer.gather([flat.data_ptr() for flat in self._flat], self._common is not None)

    def bring_back(self) -> None:
        """Moves parameters whose memory was replaced back to where they are updated and sent.

        In common memory, `gather()` does this.

        Raises:
            RuntimeError: A parameter has another dtype, shape, device or memory order than before.
        """
        for index, parameter in enumerate(self.parameters):
            if (found := _form(parameter)) != self._forms[index] or not parameter.is_cpu:
                raise RuntimeError(
                    f"[smdp] parameter {self.names[index]!r} was {_described(self._forms[index])} on the CPU"
                    f" when a ShardedOptimizer distributed it, and is now {_described(found)} on"
                    f" {parameter.device}. Convert the model before wrapping it and its optimizer."
                )
            if self._common is None:
                self._bring_back(index, [Piece(0, parameter.numel())])

    def _bring_back(self, index: int, pieces: Sequence[Piece]) -> None:
        parameter, (number, offset) = self.parameters[index], self._place[index]
        flat = self._flat[number]
        if parameter.numel() and parameter.data_ptr() != flat.data_ptr() + offset * flat.element_size():
            self._bind(parameter, number, offset, pieces)

    def _flattened(self, number: int) -> Tensor:
        """Moves the parameters of a buffer into flat memory, and returns it."""
        buffer = self._buffers[number]
        members = [(self.parameters[index], offset) for index, offset, _ in buffer.members]
        if self._common is not None:
            flat = self._common.take(buffer.count, members[0][0].dtype)
        elif buffer.is_alone:
            return flattened(members[0][0].data)
        else:
            flat = torch.zeros(buffer.count, dtype=members[0][0].dtype)
        self._memory[number] = memoryview(flat.view(torch.uint8).numpy())
        for parameter, offset in members:
            if parameter.numel():
                self._bind(parameter, number, offset, [Piece(0, parameter.numel())])
        return flat

    def _bind(self, parameter: Parameter, number: int, offset: int, pieces: Sequence[Piece]) -> None:
        """Copies pieces of a parameter into its place in flat memory, and makes it use this memory."""
        if number in self._memory:
            # Each parameter gets its own storage, so that it can be saved and copied by itself.
            size = parameter.element_size()
            part = self._memory[number][offset * size : (offset + parameter.numel()) * size]
            own = torch.frombuffer(part, dtype=parameter.dtype)
        else:
            own = self._flat[number]
        moved = own.as_strided(parameter.shape, parameter.stride(), own.storage_offset())
        before, after = flattened(parameter.detach()), flattened(moved)
        for piece in pieces:
            after[piece.begin : piece.end] = before[piece.begin : piece.end]
        parameter.data = moved


def is_dense(tensor: Tensor) -> bool:
    """Returns whether a tensor's elements fill its memory without gaps, in any order of the dimensions."""
    expected = 1
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, extent in sorted(pair for pair in pairs if pair[1] != 1):
        if stride != expected and tensor.numel():
            return False
        expected *= extent
    return True


def flattened(tensor: Tensor) -> Tensor:
    """Returns a one-dimensional view of a dense tensor, in memory order."""
    return torch.as_strided(tensor, (tensor.numel(),), (1,), tensor.storage_offset())


def _form(parameter: Tensor) -> _Form:
    pairs = zip(parameter.stride(), parameter.shape, strict=True)
    strides = [stride for stride, extent in pairs if extent != 1]
    return _Form(parameter.dtype, tuple(parameter.shape), strides)


def _described(form: _Form) -> str:
    return f"{form.dtype} of shape {form.shape} with strides {form.strides}"
