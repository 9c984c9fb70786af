"""Facts about the store of the default group, found when this process starts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Start:
    """Passes facts from the rendezvous of `init_process_group` to the creation of the default group.

    Attributes:
        job: The launcher's name for the job, the same on all of its ranks, or empty.
        place: The address of the default group's store as the program was given it. It is empty if smdp has
            not opened the store, because the caller passed a store or a file.
        limit_s: The seconds that the ranks of the default group may take to join. Default:
            SMDP_INIT_TIMEOUT.
    """

    job: str = ""
    place: str = ""
    limit_s: float | None = None
    _found: tuple[str, float | None] = "", None

    def found(self, place: str, limit_s: float) -> None:
        """Records the store's address and the time limit for the next default group."""
        self._found = place, limit_s

    def begin(self) -> None:
        """Applies the recorded facts to a new default group. Without smdp's rendezvous there are none."""
        (self.place, self.limit_s), self._found = self._found, ("", None)

    @property
    def at(self) -> str:
        """The text after "the store" in a message: its address, if known."""
        return f" at {self.place}" if self.place else ""


start = Start()
