"""The state of a sharded optimizer by parameters: this rank's ranges to read, and whole tensors to save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from smdp.torch.sharding.shard_layout import Piece, ShardLayout
from smdp.torch.sharding.shard_owners import ShardOwners
from smdp.torch.sharding.sharded_state import ShardedState
from smdp.torch.sharding.sharded_values import ShardedValues


class ReadableState:
    """What each rank has of the state of each parameter.

    Args:
        state: The state of the wrapped optimizer.
        layout: Says which pieces this rank owns.
        owners: The ranks that own the shards of each parameter, by index. If every host has a whole state,
            that of one host is saved.
    """

    def __init__(self, state: ShardedState, layout: ShardLayout, owners: Sequence[ShardOwners]) -> None:
        self._state = state
        self._layout = layout
        self._owners = owners

    def local(self) -> dict[str, list[tuple[Piece, dict[str, Any]]]]:
        """Returns this rank's ranges of each parameter with their state, by the parameter's name."""
        return {
            self._layout.names[index]: [
                (place, dict(self._state.of(piece)))
                for place, piece in zip(self._layout.pieces[index], pieces, strict=True)
            ]
            for index, pieces in self._state.pieces.items()
        }

    def saved(self) -> dict[Parameter, dict[str, Any]]:
        """Returns what this rank has to save, by parameter.

        The rank with the first element of a parameter saves what the optimizer stores once for it.
        """
        return {
            self._layout.parameters[index]: self._saved(index)
            for index in self._state.pieces
            if self._owners[index].is_counted
        }

    def room(self, parameter: Parameter, key: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
        """Returns an uninitialized tensor for what a checkpoint has under a key of the parameter's state."""
        index = self._state.index_of[id(parameter)]
        places = self._layout.pieces[index]
        if not places and size.numel() > 1:
            return ShardedValues(torch.empty(size, device="meta"), dtype, [], [])
        if index in self._layout.whole or size != parameter.shape or key in self._state.keys.per_parameter:
            return torch.empty(size, dtype=dtype)
        # A checkpoint may have whole tensors, each of which is read once for every range.
        return ShardedValues.in_one_memory(parameter, dtype, places)

    def _saved(self, index: int) -> dict[str, Any]:
        places, pieces = self._layout.pieces[index], self._state.pieces[index]
        own = [self._state.of(piece) for piece in pieces]
        if not own:
            return {}
        if index in self._layout.whole:
            return dict(own[0])
        found: dict[str, Any] = {}
        for key, value in own[0].items():
            if self._state.is_cut(key, value, pieces[0].shape):
                values = [one[key] for one in own]
                found[key] = ShardedValues(self._layout.parameters[index], value.dtype, places, values)
            elif places[0].begin == 0:
                found[key] = value
        return found
