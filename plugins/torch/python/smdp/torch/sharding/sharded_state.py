"""The state of the wrapped optimizer, cut into the pieces of this rank and collected from all ranks."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.process_group.process_group import ProcessGroupSmdp
from smdp.torch.sharding.group_options import own_options, take_options
from smdp.torch.sharding.loaded_state import check_loaded
from smdp.torch.sharding.master_parameters import MASTER, MasterParameters
from smdp.torch.sharding.shard_layout import Piece, ShardLayout, flattened
from smdp.torch.sharding.shard_owners import ShardOwners
from smdp.torch.sharding.sharded_values import ShardedValues
from smdp.torch.sharding.trial import StateKeys

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
_MOST_AT_ONCE = 1 << 18  # elements that a collective copies


class _Kind(NamedTuple):
    """The form of a tensor in the state, which is that of the parameter if the shape is None."""

    dtype: torch.dtype
    shape: tuple[int, ...] | None


class ShardedState:
    """The state of the wrapped optimizer, which each rank has for its own pieces of the parameters.

    Args:
        optimizer: The wrapped optimizer. Its groups have the parameters of the model.
        layout: Says which pieces this rank owns.
        owners: The ranks that own the shards of each parameter, by index.
        groups: Their groups, each once.
        index_of: The index of each parameter by its id.
        masters: Keep 16-bit parameters in 32 bits.

    Attributes:
        index_of: The index of each parameter by its id.
        pieces: This rank's pieces of each parameter of the optimizer, by index. They are the keys of the
            wrapped optimizer's state.
        keys: What the optimizer stores for each element, and what for each parameter.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        layout: ShardLayout,
        owners: Sequence[ShardOwners],
        groups: Sequence[ProcessGroupSmdp],
        index_of: Mapping[int, int],
        masters: MasterParameters,
    ) -> None:
        self._optimizer = optimizer
        self._layout = layout
        self._owners = owners
        self._groups = groups
        self._masters = masters
        self.index_of = index_of
        self.pieces: dict[int, list[Parameter]] = {}
        self.keys = StateKeys(frozenset(), frozenset())

    def add(self, parameter: Parameter, keys: StateKeys) -> None:
        """Makes pieces of a parameter, and of the state that the optimizer has for it."""
        self.keys = self.keys.merged(keys)
        index = self.index_of[id(parameter)]
        self.pieces[index] = self._masters.pieces(index, self._layout.views(index), parameter.dtype)
        if parameter in self._optimizer.state:
            whole = dict(self._optimizer.state.pop(parameter))
            whole.pop(MASTER, None)  # an unsharded optimizer has loaded it, and then ignored it
            self._put(index, self._cast(parameter, self._cut(index, parameter, whole)))

    def pieces_of(self, parameter: Parameter) -> list[Parameter]:
        """Returns this rank's pieces of a parameter."""
        return self.pieces[self.index_of[id(parameter)]]

    def of(self, piece: Parameter) -> dict[Any, Any]:
        """Returns the state of a piece, which is empty before the first step."""
        found: dict[Any, Any] = self._optimizer.state.get(piece, {})
        if self._masters.have_changed and piece in self._masters:
            return {**found, MASTER: piece.detach()}
        return found

    def is_master(self, piece: Parameter) -> bool:
        """Returns whether a piece is a master, with memory of its own."""
        return piece in self._masters

    def is_cut(self, key: Any, value: object, shape: torch.Size) -> bool:
        """Returns whether a value of the state has one number for each element of a parameter or piece."""
        return isinstance(value, Tensor) and value.shape == shape and key not in self.keys.per_parameter

    def follow(self, index: int) -> None:
        """Takes over what a script has written to a parameter; see `MasterParameters`."""
        self._masters.follow(index, self.pieces[index])

    def round(self, indices: Iterable[int]) -> None:
        """Rounds masters that were updated into their parameters."""
        self._masters.have_changed = True
        for index in indices:
            self._masters.round(index, self.pieces[index])

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
        """Returns the whole state by number on the global rank `to`, and None on the others. Collective.

        The other ranks have no whole tensors. Ranks without pieces of a group take its options from a rank
        that has some, where the optimizer may have changed them.
        """
        is_here = dist.get_rank() == to
        groups = self._optimizer.param_groups
        numbered = [one for group in groups for one in group["params"]]
        own = [self._kinds(parameter) for parameter in numbered]
        pieces = [[piece for one in group["params"] for piece in self.pieces_of(one)] for group in groups]
        told: dict[ProcessGroupSmdp, list[Any]] = {}
        for ranks in self._groups:
            both: list[Any] = [None] * ranks.size()
            dist.all_gather_object(both, (own, own_options(groups, pieces)), group=ranks)
            told[ranks] = [kinds for kinds, _ in both]
            take_options(groups, [options for _, options in both], ranks.rank())
        whole: dict[int, Any] = {}
        for number, parameter in enumerate(numbered):
            kinds: dict[Any, Any] = {}
            for each in told[self._owners[self.index_of[id(parameter)]].group]:
                for key, kind in each[number].items():
                    if key not in kinds or isinstance(kind, _Kind):
                        kinds[key] = kind
            for key, kind in kinds.items():
                is_tensor = isinstance(kind, _Kind)
                value = self._collected(parameter, key, kind, to) if is_tensor else kind
                if is_here:
                    whole.setdefault(number, {})[key] = value
        return whole if is_here else None

    def load(self, given: Mapping[str, Any]) -> None:
        """Takes this rank's pieces of a whole state, and the options of its groups.

        Raises:
            ValueError: The state is that of another optimizer, or of other parameters. Nothing is changed
                then.
        """
        check_loaded(self._optimizer, given, lambda one: self._layout.names[self.index_of[id(one)]])
        groups, theirs = self._optimizer.param_groups, given["param_groups"]
        cut: dict[int, list[dict[str, Any]] | None] = {}
        for group, saved in zip(groups, theirs, strict=True):
            for parameter, number in zip(group["params"], saved["params"], strict=True):
                index = self.index_of[id(parameter)]
                whole = given["state"].get(number)
                cut[index] = None if whole is None else self._cut(index, parameter, whole)
                if (states := cut[index]) is not None:
                    cut[index] = self._cast(parameter, states)
        if any(MASTER in each for each in given["state"].values()):
            self._masters.have_changed = True
        for index, state in cut.items():
            for piece in self.pieces[index]:
                self._optimizer.state.pop(piece, None)
            masters = [each.pop(MASTER, None) for each in state or []]
            self._masters.load(index, self.pieces[index], masters)
            if state is not None:
                self._put(index, state)
        for group, saved in zip(groups, theirs, strict=True):
            group.update({key: copy.deepcopy(value) for key, value in saved.items() if key != "params"})

    def _put(self, index: int, states: list[dict[str, Any]]) -> None:
        for piece, state in zip(self.pieces[index], states, strict=True):
            if state:
                self._optimizer.state[piece] = state

    def _cast(self, parameter: Parameter, states: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Converts states to the dtype of what the optimizer updates, as torch loads them."""
        if parameter.is_floating_point():
            dtype = self._masters.dtype_of(parameter)
            for state in states:
                for key, value in state.items():
                    if isinstance(value, Tensor) and key != "step":
                        state[key] = value.to(dtype)
        return states

    def _cut(self, index: int, parameter: Parameter, whole: Mapping[Any, Any]) -> list[dict[str, Any]]:
        """Returns the state of this rank's pieces, given that of the whole parameter."""
        cut: list[dict[str, Any]] = [{} for _ in self.pieces[index]]
        for key, value in whole.items():
            if self.is_cut(key, value, parameter.shape):
                is_mine = isinstance(value, ShardedValues)
                flat = value.pieces if is_mine else self._layout.cut(index, value)
                values = [self._layout.shaped(index, one) for one in flat]
            else:
                values = [copy.deepcopy(value) for _ in cut]
            for state, one in zip(cut, values, strict=True):
                state[key] = one
        return cut

    def _kinds(self, parameter: Parameter) -> dict[Any, Any]:
        """Returns the forms of tensors that this rank has a part of or may have alone, and other values."""
        kinds: dict[Any, Any] = {}
        is_whole = self.index_of[id(parameter)] in self._layout.whole
        for piece in self.pieces_of(parameter):
            for key, value in self.of(piece).items():
                if self.is_cut(key, value, piece.shape):
                    kinds[key] = _Kind(value.dtype, None)
                elif is_whole and isinstance(value, Tensor) and value.dim():
                    kinds[key] = _Kind(value.dtype, tuple(value.shape))
                else:
                    kinds[key] = value
        return kinds

    def _collected(self, parameter: Parameter, key: Any, kind: _Kind, to: int) -> Tensor | None:
        """Returns a whole tensor of the state on the rank `to`, and None on the others, which send slices."""
        index = self.index_of[id(parameter)]
        owners, found = self._owners[index], None
        if dist.get_rank() == to:
            is_like = kind.shape is None
            found = (
                self._layout.empty(index, kind.dtype)
                if is_like
                else torch.empty(kind.shape, dtype=kind.dtype)
            )
            found.zero_()
        own = list(self._own_values(index, key, kind)) if owners.is_counted else []
        count = parameter.numel() if kind.shape is None else math.prod(kind.shape)
        for begin in range(0, count, _MOST_AT_ONCE):
            end = min(begin + _MOST_AT_ONCE, count)
            part = (
                torch.zeros(end - begin, dtype=kind.dtype) if found is None else flattened(found)[begin:end]
            )
            for place, values in own:
                first, last = max(place.begin, begin), min(place.end, end)
                if first < last:
                    part[first - begin : last - begin] = values[first - place.begin : last - place.begin]
            # The sum of integers keeps the bits: one rank has them, and the others have zeros.
            owners.add_up(part.view(_INTEGERS[kind.dtype.itemsize]), to)
        return found

    def _own_values(self, index: int, key: Any, kind: _Kind) -> Iterator[tuple[Piece, Tensor]]:
        """Yields this rank's ranges of a tensor of the state, and their values in memory order."""
        for place, piece in zip(self._layout.pieces[index], self.pieces[index], strict=True):
            value = self.of(piece).get(key)
            if value is None:
                continue
            if kind.shape is not None:
                yield Piece(0, value.numel()), value.reshape(-1)
            elif index in self._layout.whole:
                yield place, flattened(self._layout.empty(index, kind.dtype).copy_(value))
            else:
                yield place, value
