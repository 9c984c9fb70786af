"""What hvd.init() takes, whatever the framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def check_comm(comm: Any, size: int) -> None:
    """Take a communicator that has all ranks: mpi4py's, or their numbers.

    Raises:
        ValueError: It has others, which smdp would not heed.
    """
    if hasattr(comm, "Get_size"):
        is_whole = comm.Get_size() == size
    elif isinstance(comm, Sequence):
        is_whole = not comm or (len(comm) == size and all(rank in comm for rank in range(size)))
    else:
        is_whole = comm is None
    if not is_whole:
        raise ValueError(
            f"[smdp] hvd.init(): comm is {comm!r}; allowed: all {size} ranks, which None gives. Start the"
            " ranks as a job of their own, or give process_set= to the calls."
        )


def sets_of(process_sets: Any) -> list[Any]:
    """Give the sets to make at once: none where all of them come later.

    Raises:
        ValueError: It is another word than "dynamic".
    """
    if not isinstance(process_sets, str):
        return list(process_sets or ())
    if process_sets.lower() != "dynamic":
        raise ValueError(
            f"[smdp] hvd.init(): process_sets is {process_sets!r}; allowed: a list, or 'dynamic'."
        )
    return []
