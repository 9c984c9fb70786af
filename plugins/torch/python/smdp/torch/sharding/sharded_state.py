"""The state of the wrapped optimizer, cut into the pieces of this rank and collected from all ranks."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.sharding.shard_layout import ShardLayout, flattened
from smdp.torch.sharding.shard_owners import ShardOwners
from smdp.torch.sharding.trial import StateKeys


class ShardedState:
    """The state of the wrapped optimizer, which each rank has for its own pieces of the parameters.

    Args:
        optimizer: The wrapped optimizer. Its groups have the parameters of the model.
        layout: Says which pieces this rank owns.
        owners: The ranks that own the shards.
        index_of: The index of each parameter by its id.

    Attributes:
        index_of: The index of each parameter by its id.
        pieces: This rank's pieces of each parameter of the optimizer, by index. They are the keys of the
            wrapped optimizer's state.
        keys: What the optimizer stores for each element, and what for each parameter.
    """

    def __init__(
        self, optimizer: Optimizer, layout: ShardLayout, owners: ShardOwners, index_of: Mapping[int, int]
    ) -> None:
        self._optimizer = optimizer
        self._layout = layout
        self._owners = owners
        self.index_of = index_of
        self.pieces: dict[int, list[Parameter]] = {}
        self.keys = StateKeys(frozenset(), frozenset())

    def add(self, parameter: Parameter, keys: StateKeys) -> None:
        """Makes pieces of a parameter, and of the state that the optimizer has for it."""
        self.keys = self.keys.merged(keys)
        index = self.index_of[id(parameter)]
        self.pieces[index] = [Parameter(view) for view in self._layout.views(index)]
        if parameter in self._optimizer.state:
            self._put(index, self._cut(index, parameter, self._optimizer.state.pop(parameter)))

    def pieces_of(self, parameter: Parameter) -> list[Parameter]:
        """Returns this rank's pieces of a parameter."""
        return self.pieces[self.index_of[id(parameter)]]

    def groups(self) -> list[dict[str, Any]]:
        """Returns the optimizer's groups as a state dict has them, with numbers in place of parameters."""
        packed: list[dict[str, Any]] = []
        first = 0
        for group in self._optimizer.param_groups:
            options = {key: value for key, value in group.items() if key != "params"}
            packed.append({**options, "params": list(range(first, first + len(group["params"])))})
            first += len(group["params"])
        return packed

    def collect(self, to: int) -> dict[int, Any] | None:
        """Returns the whole state by number on the global rank `to`, and None on the others. Collective."""
        numbered = [one for group in self._optimizer.param_groups for one in group["params"]]
        own = [self._kinds(parameter) for parameter in numbered]
        told: list[Any] = [None] * dist.get_world_size(self._owners.group)
        dist.all_gather_object(told, own, group=self._owners.group)
        whole: dict[int, Any] = {}
        for number, parameter in enumerate(numbered):
            kinds: dict[Any, Any] = {}
            for each in told:
                for key, kind in each[number].items():
                    if key not in kinds or isinstance(kind, torch.dtype):
                        kinds[key] = kind
            entry = {
                key: self._collected(parameter, key, kind, to) if isinstance(kind, torch.dtype) else kind[0]
                for key, kind in kinds.items()
            }
            if entry:
                whole[number] = entry
        return whole if dist.get_rank() == to else None

    def load(self, given: Mapping[str, Any]) -> None:
        """Takes this rank's pieces of a whole state, and the options of its groups.

        Raises:
            ValueError: The state has other groups, or a tensor of another shape. Nothing is changed then.
        """
        groups, theirs = self._optimizer.param_groups, given["param_groups"]
        if [len(one["params"]) for one in theirs] != [len(one["params"]) for one in groups]:
            raise ValueError(
                "[smdp] the loaded state has parameter groups of"
                f" {[len(one['params']) for one in theirs]} parameters, and this optimizer of"
                f" {[len(one['params']) for one in groups]}. Create the optimizer with the same groups as"
                " when the state was saved."
            )
        cut: dict[int, list[dict[str, Any]] | None] = {}
        for group, saved in zip(groups, theirs, strict=True):
            for parameter, number in zip(group["params"], saved["params"], strict=True):
                index = self.index_of[id(parameter)]
                whole = given["state"].get(number)
                cut[index] = None if whole is None else self._cut(index, parameter, _cast(whole, parameter))
        for index, state in cut.items():
            for piece in self.pieces[index]:
                self._optimizer.state.pop(piece, None)
            if state is not None:
                self._put(index, state)
        for group, saved in zip(groups, theirs, strict=True):
            group.update({key: copy.deepcopy(value) for key, value in saved.items() if key != "params"})

    def _put(self, index: int, states: list[dict[str, Any]]) -> None:
        for piece, state in zip(self.pieces[index], states, strict=True):
            self._optimizer.state[piece] = state

    def _cut(self, index: int, parameter: Parameter, whole: Mapping[Any, Any]) -> list[dict[str, Any]]:
        """Returns the state of this rank's pieces, given that of the whole parameter."""
        cut: list[dict[str, Any]] = [{} for _ in self.pieces[index]]
        for key, value in whole.items():
            if isinstance(value, Tensor) and key in self.keys.per_element and value.shape != parameter.shape:
                raise ValueError(
                    f"[smdp] the state {key!r} has shape {tuple(value.shape)}, and its parameter"
                    f" {tuple(parameter.shape)}. Load the state of an optimizer of the same model."
                )
            if self._is_cut(key, value, parameter.shape):
                values = [self._layout.shaped(index, one) for one in self._layout.cut(index, value)]
            else:
                values = [copy.deepcopy(value) for _ in cut]
            for state, one in zip(cut, values, strict=True):
                state[key] = one
        return cut

    def _is_cut(self, key: Any, value: object, shape: torch.Size) -> bool:
        return isinstance(value, Tensor) and value.shape == shape and key not in self.keys.per_parameter

    def _kinds(self, parameter: Parameter) -> dict[Any, Any]:
        """Returns the dtype of each tensor that is cut, and everything else in a tuple."""
        kinds: dict[Any, Any] = {}
        for piece in self.pieces_of(parameter):
            for key, value in self._optimizer.state.get(piece, {}).items():
                kinds[key] = value.dtype if self._is_cut(key, value, piece.shape) else (value,)
        return kinds

    def _collected(self, parameter: Parameter, key: Any, dtype: torch.dtype, to: int) -> Tensor:
        index = self.index_of[id(parameter)]
        found = self._layout.empty(index, dtype).zero_()
        flat = flattened(found)
        if self._owners.is_counted:
            for number, piece in enumerate(self.pieces[index]):
                if (value := self._optimizer.state.get(piece, {}).get(key)) is not None:
                    self._layout.put(index, number, value, found)
        dist.reduce(flat, to, group=self._owners.group)
        return found


def _cast(whole: Mapping[Any, Any], parameter: Parameter) -> dict[Any, Any]:
    """Returns the state in the parameter's dtype, as torch loads it."""
    is_cast = parameter.is_floating_point()
    return {
        key: value.to(parameter.dtype) if isinstance(value, Tensor) and is_cast and key != "step" else value
        for key, value in whole.items()
    }
