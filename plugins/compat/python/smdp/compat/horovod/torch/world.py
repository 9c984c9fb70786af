"""Ranks, and sets of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch.distributed as dist

import smdp.torch  # noqa: F401 - registers the backend
from smdp.compat.horovod.start import check_comm, sets_of
from smdp.environments.torch_variables import set_torch_variables


class ProcessSet:
    """Some of the ranks. Known to smdp by init() or add_process_set(), which all ranks call."""

    def __init__(self, ranks: Iterable[int] = ()) -> None:
        self._ranks = sorted(ranks)
        self.process_set_id: int | None = None
        self.group: Any = None

    @property
    def ranks(self) -> list[int]:
        """Those of the world, in order."""
        return self._ranks

    def included(self) -> bool:
        """Whether this rank is in it."""
        return rank() in self.ranks

    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def rank(self) -> int:
        """This rank's place in it.

        Raises:
            ValueError: It is not in the set, or the set is not known.
        """
        check_included(self)
        return self.ranks.index(rank())


class _World(ProcessSet):
    """All ranks: none before init()."""

    @property
    def ranks(self) -> list[int]:
        return list(range(dist.get_world_size())) if dist.is_initialized() else []


global_process_set: ProcessSet = _World()
global_process_set.process_set_id = 0
_known = [global_process_set]
_numbers = itertools.count(1)  # none is given twice


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Start; a second call does nothing.

    Args:
        comm: The launcher's ranks, all of them.
        process_sets: Sets to make at once; "dynamic": they come later.

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
            f"[smdp] hvd.init(): torch.distributed was started before, over {dist.get_backend()!r}; Horovod's"
            " calls need the backend 'smdp' there."
        )
    check_comm(comm, size())
    for one in sets:
        add_process_set(one)


def shutdown() -> None:
    """End; a second call does nothing."""
    for one in _known[1:]:
        one.process_set_id = one.group = None
    del _known[1:]
    if dist.is_initialized():
        dist.destroy_process_group()


def is_initialized() -> bool:
    """Whether init() was called."""
    return bool(dist.is_initialized())


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Make a set usable; all ranks call it with the same ranks.

    Raises:
        ValueError: It is known already, or init() was not called.
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
    """Forget a set; give whether it was known."""
    if process_set is global_process_set or process_set not in _known:
        return False
    _known.remove(process_set)
    if process_set.included():
        dist.destroy_process_group(process_set.group)
    process_set.process_set_id = process_set.group = None
    return True


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Give the ranks of every known set, by its id."""
    return {one.process_set_id: list(one.ranks) for one in _known if one.process_set_id is not None}


def is_process_set_included(process_set_id: int) -> bool:
    """Whether this rank is in a set that is known.

    Raises:
        ValueError: It is not.
    """
    for one in _known:
        if one.process_set_id == process_set_id:
            return one.included()
    known = ", ".join(map(str, get_process_set_ids_and_ranks()))
    raise ValueError(f"[smdp] there is no process set {process_set_id}; there are: {known}.")


def check_known(process_set: ProcessSet) -> None:
    """Refuse a set that has no group yet, in whose place torch would take all ranks.

    Raises:
        TypeError: It is no set.
        ValueError: The set is not known, or init() was not called.
    """
    if not isinstance(process_set, ProcessSet):
        raise TypeError(
            f"[smdp] process_set is {process_set!r}; needed: a hvd.ProcessSet that hvd.add_process_set()"
            " knows."
        )
    _started()
    if process_set.process_set_id is None:
        raise ValueError(
            f"[smdp] the process set of ranks {process_set.ranks} is not known: all ranks must give it to"
            " hvd.add_process_set() first."
        )


def check_included(process_set: ProcessSet) -> None:
    """Refuse a call that this rank has no part in.

    Raises:
        ValueError: It is not in the set, or the set is not known.
    """
    check_known(process_set)
    if not process_set.included():
        raise ValueError(
            f"[smdp] rank {rank()} is not in the process set of ranks {process_set.ranks}: only those may"
            " make the call. Ask process_set.included() before."
        )


def size() -> int:
    """Number of ranks."""
    return int(dist.get_world_size(_started()))


def rank() -> int:
    """This process's rank."""
    return int(dist.get_rank(_started()))


def local_size() -> int:
    """Number of ranks on this host."""
    return int(_core().local_size)


def local_rank() -> int:
    """Rank on this host."""
    return int(_core().local_rank)


def cross_size() -> int:
    """Number of hosts."""
    return len(_core().hosts)


def cross_rank() -> int:
    """Number of this host."""
    return int(_core().host_index)


def is_homogeneous() -> bool:
    """Whether all hosts have as many ranks."""
    return len({len(ranks) for ranks in _core().hosts}) == 1


def _core() -> Any:
    return _started().core


def _started() -> Any:
    """Give the group of all ranks."""
    if not dist.is_initialized():
        raise ValueError("[smdp] Horovod has not been initialized; use hvd.init().")
    return dist.group.WORLD
