"""What the start of this process has found out about the store at which its ranks meet."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass
class Start:
    """What the rendezvous of `init_process_group` leaves for the default group.

    Attributes:
        job: The launcher's name of the job, the same on all its ranks; empty if it has none.
    """

    job: str = ""
    _place: str = ""
    _limit_s: float | None = None

    def found(self, place: str, limit_s: float) -> None:
        """Remembers where torch's store is, and how long the caller lets the ranks take to meet there."""
        self._place, self._limit_s = place, limit_s

    def take_limit(self, default_s: float) -> float:
        """Returns how long the ranks of the default group may take to meet; counts for one group only."""
        limit_s, self._limit_s = self._limit_s, None
        return default_s if limit_s is None else limit_s

    @property
    def place(self) -> str:
        """Where the store is, in the words in which the program was told."""
        if self._place:
            return self._place
        address, port = (os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
        return f"MASTER_ADDR={address}, MASTER_PORT={port}"


start = Start()
