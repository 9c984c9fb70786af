"""Initialization, ranks and process sets."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch.distributed as dist

import smdp.torch  # noqa: F401 - registers the backend
from smdp.compat.horovod.start import check_comm, sets_of
from smdp.environments.torch_variables import set_torch_variables


class ProcessSet:
    """A set of ranks. All ranks must add it with init() or add_process_set() before it is used."""

    def __init__(self, ranks: Iterable[int] = ()) -> None:
        self._ranks = sorted(ranks)
        self.process_set_id: int | None = None
        self.group: Any = None

    @property
    def ranks(self) -> list[int]:
        """Ranks of the world that are in the set, in ascending order."""
        return self._ranks

    def included(self) -> bool:
        """Returns whether this rank is in the set."""
        return rank() in self.ranks

    def size(self) -> int:
        """Returns the number of ranks in the set."""
        return len(self.ranks)

    def rank(self) -> int:
        """Returns this rank's position in the set.

        Raises:
            ValueError: This rank is not in the set, or the set was not added.
        """
        check_included(self)
        return self.ranks.index(rank())


class _World(ProcessSet):
    """All ranks. The set is empty before init()."""

    @property
    def ranks(self) -> list[int]:
        return list(range(dist.get_world_size())) if dist.is_initialized() else []


global_process_set: ProcessSet = _World()
global_process_set.process_set_id = 0
_known = [global_process_set]
_numbers = itertools.count(1)  # an id is never reused


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Initializes the world. A second call does nothing.

    Args:
        comm: None, or a communicator or list with all ranks of the job.
        process_sets: Process sets to add; "dynamic" if the script adds them later.

    Raises:
        ValueError: An argument is wrong, or torch.distributed was started over another backend.
    """
    sets = sets_of(process_sets)
    if not dist.is_initialized():
        if set_torch_variables():
            dist.init_process_group("smdp")
        else:
            dist.init_process_group("smdp", store=dist.HashStore(), rank=0, world_size=1)
    elif not hasattr(dist.distributed_c10d._get_default_group(), "core"):
        raise ValueError(
            f"[smdp] hvd.init(): torch.distributed was already started with backend {dist.get_backend()!r};"
            " Horovod's calls need the backend 'smdp'."
        )
    check_comm(comm, size())
    for one in sets:
        add_process_set(one)


def shutdown() -> None:
    """Shuts the world down. A second call does nothing."""
    for one in _known[1:]:
        one.process_set_id = one.group = None
    del _known[1:]
    if dist.is_initialized():
        dist.destroy_process_group()


def is_initialized() -> bool:
    """Returns whether init() was called."""
    return bool(dist.is_initialized())


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Adds a process set. All ranks must call it with the same ranks.

    Raises:
        ValueError: The set was added already, or init() was not called.
    """
    _started()
    one = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if one.process_set_id is not None:
        raise ValueError(f"[smdp] the process set of ranks {one.ranks} was added already.")
    one.group = dist.new_group(one.ranks)
    one.process_set_id = next(_numbers)
    _known.append(one)
    return one


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set and returns whether it had been added."""
    if process_set is global_process_set or process_set not in _known:
        return False
    _known.remove(process_set)
    if process_set.included():
        dist.destroy_process_group(process_set.group)
    process_set.process_set_id = process_set.group = None
    return True


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Returns the ranks of every process set that was added, by id."""
    return {one.process_set_id: list(one.ranks) for one in _known if one.process_set_id is not None}


def is_process_set_included(process_set_id: int) -> bool:
    """Returns whether this rank is in a process set.

    Raises:
        ValueError: No set has this id.
    """
    for one in _known:
        if one.process_set_id == process_set_id:
            return one.included()
    known = ", ".join(map(str, get_process_set_ids_and_ranks()))
    raise ValueError(f"[smdp] there is no process set {process_set_id}; existing sets: {known}.")


def check_known(process_set: ProcessSet) -> None:
    """Checks that a process set has a group; without one, torch would use all ranks.

    Raises:
        TypeError: `process_set` is not a ProcessSet.
        ValueError: The set was not added, or init() was not called.
    """
    if not isinstance(process_set, ProcessSet):
        raise TypeError(
            f"[smdp] process_set is {process_set!r}; expected an hvd.ProcessSet that was added with"
            " hvd.add_process_set()."
        )
    _started()
    if process_set.process_set_id is None:
        raise ValueError(
            f"[smdp] the process set of ranks {process_set.ranks} was not added. Call"
            " hvd.add_process_set() with it on all ranks first."
        )


def check_included(process_set: ProcessSet) -> None:
    """Checks that this rank is in a process set.

    Raises:
        ValueError: This rank is not in the set, or the set was not added.
    """
    check_known(process_set)
    if not process_set.included():
        raise ValueError(
            f"[smdp] rank {rank()} is not in the process set of ranks {process_set.ranks}: only those ranks"
            " may make the call. Check process_set.included() first."
        )


def size() -> int:
    """Returns the number of ranks."""
    return int(dist.get_world_size(_started()))


def rank() -> int:
    """Returns the rank of this process."""
    return int(dist.get_rank(_started()))


def local_size() -> int:
    """Returns the number of ranks on this host."""
    return int(_core().local_size)


def local_rank() -> int:
    """Returns the rank within this host."""
    return int(_core().local_rank)


def cross_size() -> int:
    """Returns the number of hosts."""
    return len(_core().hosts)


def cross_rank() -> int:
    """Returns the index of this host."""
    return int(_core().host_index)


def is_homogeneous() -> bool:
    """Returns whether all hosts have the same number of ranks."""
    return len({len(ranks) for ranks in _core().hosts}) == 1


def _core() -> Any:
    return _started().core


def _started() -> Any:
    """Returns the group of all ranks, or raises an error before init()."""
    if not dist.is_initialized():
        raise ValueError("[smdp] Horovod has not been initialized; use hvd.init().")
    return dist.group.WORLD
