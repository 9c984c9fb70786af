"""The state of one replica's shard, and the state that the shards of all replicas form.

A shard is a state dict of virtual parameters. Under the key `_smp_shard` it says which elements of which
parameter each of them has, so that any number of replicas can load the shards together. With tensor
parallelism, the replicas of a slice have all of its state, but share that of whole parameters with the
replicas of other slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.sharding.master_parameters import LOW, MASTER
from smdp.torch.sharding.shard_layout import flattened
from smdp.torch.sharding.sharded_optimizer import ShardedOptimizer

SHARD = "_smp_shard"


def shard_of(sharded: ShardedOptimizer, names: Mapping[Parameter, str], mesh: ParallelMesh) -> dict[str, Any]:
    """Returns the state of this rank's virtual parameters.

    Args:
        sharded: The optimizer.
        names: The name of each parameter.
        mesh: The ranks.
    """
    owned, states = sharded.owned(), sharded.state
    found: dict[int, Any] = {}
    pieces: list[tuple[str, int, int]] = []
    groups, shapes = [], {}
    for group in sharded.param_groups:
        members = []
        for parameter in group["params"]:
            name = names[parameter]
            shapes[name] = tuple(parameter.shape), parameter.stride()
            for (begin, end), piece in owned[name]:
                members.append(len(pieces))
                if piece in states:
                    found[len(pieces)] = dict(states[piece])
                if sharded.keeps_masters and parameter.dtype in LOW:
                    found.setdefault(len(pieces), {})[MASTER] = piece.detach()
                pieces.append((name, begin, end))
        groups.append({**{key: value for key, value in group.items() if key != "params"}, "params": members})
    slices = mesh.ranks("tp")
    place = {
        "replica": mesh.replica,
        "replicas": mesh.replicas,
        "slice": slices.index(mesh.rank),
        "slices": len(slices),
        "shared_by_slices": sorted(sharded.shared_by_slices),
        "pieces": pieces,
        "shapes": shapes,
        "per_parameter": sorted(sharded.keys_per_parameter, key=str),
    }
    return {"state": found, "param_groups": groups, SHARD: place}


def is_shard(found: object) -> bool:
    """Returns whether this is the state of one replica's shard."""
    return isinstance(found, Mapping) and SHARD in found


def slices_of(shard: Mapping[str, Any]) -> list[int]:
    """Returns the slices whose shards form the state of the parameters in this one, its own first."""
    place = shard[SHARD]
    others = range(place["slices"]) if place["shared_by_slices"] else []
    return [place["slice"], *(each for each in others if each != place["slice"])]


def shared_part(shard: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a shard without the state of slices, which ranks of other slices do not need."""
    shared = set(shard[SHARD]["shared_by_slices"])
    names = [name for name, _, _ in shard[SHARD]["pieces"]]
    state = {number: each for number, each in shard["state"].items() if names[number] in shared}
    return {**shard, "state": state}


def joined(shards: Sequence[Mapping[str, Any]], names: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Returns the state of this rank's parameters that the shards of all replicas form.

    Args:
        shards: What `shard_of()` has returned on each replica of the slices in `slices_of()`, one of this
            rank's slice first. Of those of other slices, the `shared_part()`.
        names: The names of the parameters, by group, as when the shards were saved.

    Raises:
        ValueError: The shards are not those of all replicas.
    """
    wanted = shards[0][SHARD]["replicas"]
    for number in slices_of(shards[0]):
        given = sorted(each[SHARD]["replica"] for each in shards if each[SHARD]["slice"] == number)
        if given != list(range(wanted)):
            raise ValueError(
                f"[smdp] the optimizer's state consists of the shards of {wanted} replicas of slice {number},"
                f" but those of replicas {', '.join(map(str, given)) or 'none'} are given. Load the shards of"
                " all of them, each once."
            )
    groups, first = [], 0
    for group, members in zip(shards[0]["param_groups"], names, strict=True):
        groups.append({**group, "params": list(range(first, first + len(members)))})
        first += len(members)
    flat = [name for members in names for name in members]
    return {"state": _JoinedState(shards, flat), "param_groups": groups}


class _JoinedState(Mapping[int, Any]):
    """Joins the state of one parameter at a time, when it is asked for.

    Args:
        shards: See `joined()`.
        names: The name of each parameter, by its number.
    """

    def __init__(self, shards: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
        self._names = names
        self._shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._parts: dict[str, list[tuple[int, int, Mapping[str, Any]]]] = {}
        self._whole: set[str] = set()
        own = shards[0][SHARD]["slice"]
        for shard in shards:
            place = shard[SHARD]
            if place["slice"] == own:
                self._shapes |= place["shapes"]
            self._whole |= set(place["per_parameter"])
            for number, (name, begin, end) in enumerate(place["pieces"]):
                if number in shard["state"]:
                    self._parts.setdefault(name, []).append((begin, end, shard["state"][number]))

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Returns the state of a parameter."""
        name = self._names[number]
        shape, strides = self._shapes[name]
        found: dict[str, Any] = {}
        for begin, end, state in self._parts[name]:
            for key, value in state.items():
                if isinstance(value, Tensor) and value.shape == (end - begin,) and key not in self._whole:
                    if key not in found:
                        found[key] = torch.empty_strided(shape, strides, dtype=value.dtype).zero_()
                    flattened(found[key])[begin:end] = value
                else:
                    found.setdefault(key, value)
        return found

    def __iter__(self) -> Iterator[int]:
        """Yields the numbers of parameters that have a state."""
        return (number for number, name in enumerate(self._names) if name in self._parts)

    def __len__(self) -> int:
        """Returns the number of parameters that have a state."""
        return sum(name in self._parts for name in self._names)
