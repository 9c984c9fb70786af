"""Checks of the arguments of hvd.init(), for all frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def check_comm(comm: Any, size: int) -> None:
    """Checks that a communicator, of mpi4py or a list of rank numbers, has all ranks.

    Raises:
        ValueError: It has only some of the ranks, or other ones.
    """
    if hasattr(comm, "Get_size"):
        is_whole = comm.Get_size() == size
    elif isinstance(comm, Sequence):
        is_whole = not comm or (len(comm) == size and all(rank in comm for rank in range(size)))
    else:
        is_whole = comm is None
    if not is_whole:
        raise ValueError(
            f"[smdp] hvd.init(): comm is {comm!r}; allowed: all {size} ranks, or None, which means all."
            " Start these ranks as a separate job, or pass process_set= to the calls."
        )


def sets_of(process_sets: Any) -> list[Any]:
    """Returns the process sets that init() creates; none if the script adds all of them later.

    Raises:
        ValueError: It is a string other than "dynamic".
    """
    if not isinstance(process_sets, str):
        return list(process_sets or ())
    if process_sets.lower() != "dynamic":
        raise ValueError(
            f"[smdp] hvd.init(): process_sets is {process_sets!r}; allowed: a list, or 'dynamic'."
        )
    return []
