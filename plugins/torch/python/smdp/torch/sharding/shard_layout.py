"""Which parts of each parameter this rank owns, and flat memory for parameters and means."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from smdp import _core


class Piece(NamedTuple):
    """A range of a parameter's elements, in memory order, that this rank owns.

    Attributes:
        begin: The first element.
        end: The element after the last one.
    """

    begin: int
    end: int


class ShardLayout:
    """The fusion buffers of a sharded reducer, seen from the parameters.

    Parameters of a buffer move into flat memory that is laid out like the buffer, so that they travel without
    being copied. A large parameter, which has its own buffer, stays where it is.

    Args:
        reducer: A reducer whose `shards` are "world" or "host".
        parameters: The parameters, by index.

    Attributes:
        pieces: The pieces of each parameter that this rank owns, by index.
    """

    def __init__(self, reducer: _core.GradientReducer, parameters: Sequence[Parameter]) -> None:
        self._reducer = reducer
        self._parameters = parameters
        self._buffers = reducer.sharded_buffers
        self.pieces: list[list[Piece]] = [[] for _ in parameters]
        self._place: dict[int, tuple[int, int]] = {}  # buffer and offset of each parameter, by index
        for number, buffer in enumerate(self._buffers):
            for index, offset, count in buffer.members:
                self._place[index] = (number, offset)
                for begin, end in buffer.owned:
                    first, last = max(begin - offset, 0), min(end - offset, count)
                    if first < last:
                        self.pieces[index].append(Piece(first, last))
        self._flat = [self._flattened(number) for number in range(len(self._buffers))]

    @property
    def numel(self) -> int:
        """The number of elements that this rank owns."""
        return sum(piece.end - piece.begin for pieces in self.pieces for piece in pieces)

    def views(self, index: int) -> list[Tensor]:
        """Returns one-dimensional views of this rank's pieces of a parameter."""
        number, offset = self._place[index]
        return [self._flat[number][offset + piece.begin : offset + piece.end] for piece in self.pieces[index]]

    def means(self, index: int, lent: Tensor | None) -> list[Tensor]:
        """Returns views of this rank's pieces of a mean, which are valid until the next step.

        Args:
            index: The parameter's index.
            lent: The gradient that this rank handed over, in whose memory a large one is summed.
        """
        number, offset = self._place[index]
        buffer = self._buffers[number]
        if buffer.is_alone and lent is not None:
            flat = _flat(lent)
            return [flat[piece.begin : piece.end] for piece in self.pieces[index]]
        dtype = self._parameters[index].dtype
        if buffer.count == 0:
            return []
        size = buffer.count * dtype.itemsize
        memory = (ctypes.c_byte * size).from_address(self._reducer.means(number))
        flat = torch.frombuffer(memory, dtype=dtype)
        return [flat[offset + piece.begin : offset + piece.end] for piece in self.pieces[index]]

    @property
    def size(self) -> int:
        """The number of fusion buffers."""
        return len(self._buffers)

    def cut(self, index: int, place: int, state: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
        """Returns the part of a parameter's optimizer state that belongs to one of its pieces.

        Args:
            index: The parameter's index.
            place: Which of the parameter's pieces is meant.
            state: The state of the whole parameter. Tensors of the parameter's shape are cut, and everything
                else is copied.
            parameter: The parameter.
        """
        piece = self.pieces[index][place]
        cut: dict[str, Any] = {}
        for key, value in state.items():
            if not isinstance(value, Tensor):
                cut[key] = value
            elif value.shape == parameter.shape and value.numel() > 0 and key != "step":
                laid_out = torch.empty_strided(parameter.shape, parameter.stride(), dtype=value.dtype)
                cut[key] = _flat(laid_out.copy_(value))[piece.begin : piece.end].clone()
            else:
                cut[key] = value.clone()
        return cut

    def buffer_of(self, index: int) -> int:
        """Returns the number of the fusion buffer that a parameter belongs to."""
        return self._place[index][0]

    def gather(self) -> _core.ParameterGather:
        """Starts sending the pieces of all ranks to all ranks, buffer by buffer. Collective."""
        return self._reducer.gather([flat.data_ptr() for flat in self._flat])

    def _flattened(self, number: int) -> Tensor:
        """Moves the parameters of a buffer into flat memory, and returns it."""
        buffer = self._buffers[number]
        members = [(self._parameters[index], offset) for index, offset, _ in buffer.members]
        if buffer.is_alone:
            return _flat(members[0][0].data)
        flat = torch.zeros(buffer.count, dtype=members[0][0].dtype)
        # Each parameter gets its own storage, so that it can be saved and copied by itself.
        memory = memoryview(flat.view(torch.uint8).numpy())
        size = flat.element_size()
        with torch.no_grad():
            for parameter, offset in members:
                if parameter.numel() == 0:
                    continue
                part = memory[offset * size : (offset + parameter.numel()) * size]
                own = torch.frombuffer(part, dtype=flat.dtype)
                moved = own.as_strided(parameter.shape, parameter.stride())
                moved.copy_(parameter)
                parameter.data = moved
        return flat


def _flat(tensor: Tensor) -> Tensor:
    """Returns a one-dimensional view of a dense tensor, in memory order."""
    return torch.as_strided(tensor, (tensor.numel(),), (1,), tensor.storage_offset())
