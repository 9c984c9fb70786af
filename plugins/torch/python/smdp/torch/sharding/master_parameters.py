"""32-bit copies of 16-bit parameters, or of the pieces of them that a rank updates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from smdp.torch.sharding.shard_layout import flattened

MASTER = "master"  # the key under which a saved state has the masters

LOW = (torch.float16, torch.bfloat16)


class MasterParameters:
    """Keeps this rank's pieces of 16-bit parameters in `float32`, where the optimizer updates them.

    After an update the rounded masters become the parameters. A script may write to the parameters between
    steps: where a parameter is not its rounded master any more, it replaces the master. So weights and state
    can be loaded in any order, and weights that are exchanged for averaged ones and brought back keep their
    masters.

    Args:
        dtype: The masters' dtype, or None: the optimizer updates the parameters themselves.

    Attributes:
        have_changed: Whether masters may have values that the parameters do not have, the same on all ranks.
    """

    def __init__(self, dtype: torch.dtype | None) -> None:
        self._dtype = dtype
        self._views: dict[int, list[Tensor]] = {}  # this rank's pieces of the parameters that have masters
        self._ids: set[int] = set()  # of the masters
        self.have_changed = False

    def pieces(self, index: int, views: list[Tensor], dtype: torch.dtype) -> list[Parameter]:
        """Returns what the optimizer updates: masters, or the pieces themselves.

        Args:
            index: The parameter's index.
            views: This rank's pieces of the parameter.
            dtype: The parameter's.
        """
        if self._dtype is None or dtype not in LOW:
            return [Parameter(view) for view in views]
        self._views[index] = views
        made = [Parameter(view.to(self._dtype)) for view in views]
        self._ids.update(map(id, made))
        return made

    def look_at(self, index: int, views: list[Tensor]) -> None:
        """Notes where the pieces of a parameter with masters are now, in case its memory was replaced."""
        self._views[index] = views

    def state_bytes(self, parameter: Tensor, keys: int) -> int:
        """Returns the bytes of a parameter's state on all ranks together, with its master.

        Args:
            parameter: The parameter.
            keys: How many values the optimizer stores for each element.
        """
        if self._dtype is None or parameter.dtype not in LOW:
            return int(parameter.nbytes) * keys
        return int(parameter.numel() * self._dtype.itemsize) * (keys + 1)

    def __bool__(self) -> bool:
        return bool(self._views)

    def __contains__(self, piece: Parameter) -> bool:
        return id(piece) in self._ids

    def dtype_of(self, parameter: Tensor) -> torch.dtype:
        """Returns the dtype of what the optimizer updates in place of a parameter."""
        return self._dtype if self._dtype is not None and parameter.dtype in LOW else parameter.dtype

    def load(self, index: int, pieces: Sequence[Parameter], saved: Sequence[Tensor | None]) -> None:
        """Sets the masters of a parameter to saved ones, or else to the parameter's values."""
        if index not in self._views:
            return
        is_saved = bool(saved) and saved[0] is not None
        for piece, values in zip(pieces, saved if is_saved else self._views[index], strict=True):
            assert values is not None
            piece.detach().copy_(values)

    def follow(self, index: int, pieces: Sequence[Parameter]) -> None:
        """Takes over what a script has written to a parameter since its last update."""
        for piece, view in zip(pieces, self._views.get(index, ()), strict=False):
            follow(piece.detach(), view)

    def round(self, index: int, pieces: Sequence[Parameter]) -> None:
        """Rounds the masters that the optimizer has just updated into their parameter."""
        for master, view in zip(pieces, self._views.get(index, ()), strict=False):
            if master.grad is not None:
                view.copy_(master.detach())


def follow(master: Tensor, view: Tensor) -> None:
    """Sets the elements of a tensor with 32 bits that do not round to those of one with 16 bits.

    Args:
        master: The tensor to change.
        view: The tensor with the wanted values, of the same shape and dense.
    """
    rounded = master.to(view.dtype)
    if not _have_same_bits(flattened(rounded), flattened(view)):
        master.copy_(torch.where(rounded == view, master, view))


def _have_same_bits(one: Tensor, other: Tensor) -> bool:
    """Compares tensors of 16 bits, mostly as integers of 64, which takes a fifth of the time."""
    end = one.numel() // 4 * 4
    if one.storage_offset() % 4 or other.storage_offset() % 4:
        end = 0
    is_same = torch.equal(one[:end].view(torch.int64), other[:end].view(torch.int64))
    return is_same and bool(torch.equal(one[end:].view(torch.int16), other[end:].view(torch.int16)))
