"""A tensor of an optimizer's state of which each rank has pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from smdp.torch.sharding.boxed_tensor import BoxedTensor
from smdp.torch.sharding.boxes import Box, boxes_of, memory_order
from smdp.torch.sharding.shard_layout import Piece


class ShardedValues(BoxedTensor):
    """A tensor whose values are distributed over ranks, each of which has ranges in memory order.

    Attributes:
        pieces: One-dimensional tensors, this rank's values in memory order.
    """

    pieces: list[Tensor]
    _memory: list[tuple[Piece, Tensor]]  # one-dimensional tensors with the pieces, and their places

    @staticmethod
    def __new__(
        cls, like: Tensor, dtype: torch.dtype, ranges: Sequence[Piece], pieces: list[Tensor]
    ) -> ShardedValues:
        """Creates a tensor that is laid out like another one.

        Args:
            like: Has the shape and strides, for example a parameter.
            dtype: The dtype of the values.
            ranges: The places of this rank's pieces.
            pieces: Their values.
        """
        made: ShardedValues = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=dtype, device="cpu"
        )
        made.pieces = pieces
        made._memory = list(zip(ranges, pieces, strict=True))
        return made

    @classmethod
    def in_one_memory(cls, like: Tensor, dtype: torch.dtype, ranges: Sequence[Piece]) -> ShardedValues:
        """Creates a tensor with uninitialized values, in which pieces that follow each other are contiguous.

        Args:
            like: Has the shape and strides.
            dtype: The dtype of the values.
            ranges: The places of this rank's pieces, in ascending order.
        """
        runs: list[Piece] = []
        for place in ranges:
            begin = runs.pop().begin if runs and runs[-1].end == place.begin else place.begin
            runs.append(Piece(begin, place.end))
        memory = [(run, torch.empty(run.end - run.begin, dtype=dtype)) for run in runs]
        pieces = [
            flat[place.begin - run.begin : place.end - run.begin]
            for run, flat in memory
            for place in ranges
            if run.begin <= place.begin < run.end
        ]
        made = cls(like, dtype, ranges, pieces)
        made._memory = memory
        return made

    def __repr__(self) -> str:
        """Returns the shape and the number of this rank's values."""
        own = sum(piece.numel() for piece in self.pieces)
        return f"ShardedValues({tuple(self.shape)}, {self.dtype}, {own} values on this rank)"

    def boxes(self) -> Iterator[tuple[Box, Tensor]]:
        """Yields this rank's boxes, and views of their values."""
        order = memory_order(self.shape, self.stride())
        inverse = [order.index(dim) for dim in range(len(order))]
        for place, flat in self._memory:
            begin = 0
            for box in boxes_of(self.shape, order, place.begin, place.end):
                end = begin + torch.Size(box.sizes).numel()
                values = _with_own_storage(flat, begin, end)
                yield box, values.view([box.sizes[dim] for dim in order]).permute(inverse)
                begin = end

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuses operations."""
        raise RuntimeError(
            f"[smdp] {func} of an optimizer's state whose values are distributed over the ranks. Call"
            " local_state() on the optimizer for the values of this rank."
        )


def _with_own_storage(flat: Tensor, begin: int, end: int) -> Tensor:
    """Returns a range of a one-dimensional tensor, in the same memory but with a storage of its own.

    torch would copy a view of a larger storage before it saves it, and keep the copies until the file ends.
    """
    data = memoryview(flat.detach().view(torch.uint8).numpy())
    size = flat.element_size()
    return torch.frombuffer(data[begin * size : end * size], dtype=flat.dtype)
