"""What the start of this process has found out about the store at which its ranks meet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Start:
    """What the rendezvous of `init_process_group` leaves for the default group.

    Attributes:
        job: The launcher's name of the job, the same on all its ranks; empty if it has none.
        place: Where the default group's store is, in the words in which the program was told. Empty where
            smdp has not opened it: the caller passed a store, or a file.
        limit_s: Seconds that the ranks of the default group may take to meet. Default: SMDP_INIT_TIMEOUT.
    """

    job: str = ""
    place: str = ""
    limit_s: float | None = None
    _found: tuple[str, float | None] = "", None

    def found(self, place: str, limit_s: float) -> None:
        """Remembers, for the default group that is made next, where its store is and the time limit."""
        self._found = place, limit_s

    def begin(self) -> None:
        """Takes what the rendezvous of a new default group has found; nothing if smdp's did not run."""
        (self.place, self.limit_s), self._found = self._found, ("", None)

    @property
    def at(self) -> str:
        """What follows "the store" in a message: its place, if that is known."""
        return f" at {self.place}" if self.place else ""


start = Start()
