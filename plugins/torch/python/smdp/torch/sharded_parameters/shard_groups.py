"""The ranks that hold the shards of one copy of a model, and those that hold the same shard."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from smdp._shown import counted, shown
from smdp.torch.process_group.process_group import ProcessGroupSmdp, timeout_of_world


class ShardGroups(NamedTuple):
    """The groups of a model whose parameters are in shards.

    Attributes:
        everyone: All ranks that train the model, as a group that only its steps use.
        shards: The ranks whose shards make up one copy of the model.
        replicas: The ranks that hold the same shard as this one.
        alone: This rank.
        device_type: The type of the model's device.
        made: The groups that were created for the model.
    """

    everyone: ProcessGroupSmdp
    shards: ProcessGroupSmdp
    replicas: ProcessGroupSmdp
    alone: ProcessGroupSmdp
    device_type: str
    made: list[ProcessGroupSmdp]

    @property
    def degree(self) -> int:
        """The number of shards."""
        return self.shards.size()

    def mesh(self) -> DeviceMesh:
        """Returns the ranks with the shards of one copy as torch's mesh."""
        return DeviceMesh.from_group(self.shards, self.device_type)

    def mesh_alone(self) -> DeviceMesh:
        """Returns a mesh of this rank with a group of its own."""
        return DeviceMesh.from_group(self._new_group([dist.get_rank()]), self.device_type)

    def mesh_beside(self) -> DeviceMesh:
        """Returns a mesh of the same ranks with a group of its own. All these ranks call it together."""
        ranks = dist.get_process_group_ranks(self.shards)
        return DeviceMesh.from_group(self._new_group(ranks), self.device_type)

    def leave(self) -> None:
        """Destroys the groups that were created for the model, so that torch can use their names again."""
        while self.made:
            group = self.made.pop()
            # torch.distributed may have been destroyed, or initialized again without this group.
            if dist.is_initialized():
                with contextlib.suppress(ValueError):
                    dist.destroy_process_group(group)
        # DTensors get the mesh of an earlier operation on an equal mesh. From torch 2.14 on, the groups of a
        # mesh that is created again have other names.
        _clear_sharding_prop_cache()

    def _new_group(self, ranks: Sequence[int]) -> ProcessGroupSmdp:
        self.made.append(_new_group(ranks))
        return self.made[-1]


def chosen_degree(degree: int | None, hosts: Sequence[Sequence[int]]) -> int:
    """Returns the number of shards.

    With None, these are the ranks of a host if there are several hosts with the same number of consecutive
    ranks, of at least 2, and otherwise all ranks. Between hosts, only averaged shards are then sent.

    Args:
        degree: The argument of the script.
        hosts: The ranks of each host, from 0.

    Raises:
        ValueError: The ranks cannot be divided into groups of `degree`.
    """
    size = sum(map(len, hosts))
    if degree is None:
        local = len(hosts[0])
        places = [[rank // local for rank in ranks] for ranks in hosts]
        is_even = all(
            len(ranks) == local and len(set(place)) == 1 for ranks, place in zip(hosts, places, strict=True)
        )
        return local if len(hosts) > 1 and local > 1 and is_even else size
    if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1 or size % degree != 0:
        divisors = ", ".join(str(each) for each in range(1, size + 1) if size % each == 0)
        raise ValueError(
            f"[smdp] ShardedDataParallel: degree = {shown(degree)} does not divide {counted(size, 'rank')}"
            f" into equal groups. Use one of: {divisors}; or None."
        )
    return degree


def make_groups(
    given: ProcessGroupSmdp, degree: int, device_type: str, *, is_for_steps: bool = False
) -> ShardGroups:
    """Creates the groups. Collective over `given`.

    The shards of one copy lie on consecutive ranks, which a launcher puts on the same host.

    Args:
        given: The ranks that train the model.
        degree: The number of shards, which divides the number of ranks.
        device_type: The type of the model's device.
        is_for_steps: Whether only steps use `given`. Otherwise they get another group of the same ranks, so
            that a failed step closes none of the script's.
    """
    ranks, place = dist.get_process_group_ranks(given), given.rank()
    first = place - place % degree
    alone = _new_group([ranks[place]])
    everyone = given
    if not is_for_steps:
        everyone = alone if len(ranks) == 1 else _new_group(ranks)
    shards = everyone
    if degree < len(ranks):
        shards = alone if degree == 1 else _new_group(ranks[first : first + degree])
    replicas = everyone
    if degree > 1:
        replicas = alone if degree == len(ranks) else _new_group(ranks[place % degree :: degree])
    own = {id(each): each for each in (everyone, shards, replicas, alone) if each is not given}
    return ShardGroups(everyone, shards, replicas, alone, device_type, list(own.values()))


def _new_group(ranks: Sequence[int]) -> ProcessGroupSmdp:
    made: ProcessGroupSmdp = dist.new_group(
        list(ranks), backend="smdp", timeout=timeout_of_world(), use_local_synchronization=True
    )
    return made
