"""What verify() raises, one class per check."""

from __future__ import annotations


class ScheduleError(ValueError):
    """A schedule that cannot be executed; a subclass says which rule it breaks.

    Attributes:
        check: Name of the rule.
        rank: Rank of the action at fault.
        stage: Its virtual stage; -1 if the action has none.
        microbatch: Its microbatch; -1 if it has none.
        action: The action as text, e.g. "2F0"; the missing one where one is missing.
    """

    check: str
    rank: int
    stage: int
    microbatch: int
    action: str

    def __init__(
        self,
        message: str = "",
        check: str = "",
        rank: int = -1,
        stage: int = -1,
        microbatch: int = -1,
        action: str = "",
    ) -> None:
        super().__init__(message)
        self.check = check
        self.rank = rank
        self.stage = stage
        self.microbatch = microbatch
        self.action = action

    def __reduce__(self) -> tuple[type[ScheduleError], tuple[str, str, int, int, int, str]]:
        return type(self), (str(self), self.check, self.rank, self.stage, self.microbatch, self.action)


class EmptyStageError(ScheduleError):
    """A virtual stage takes no part: its neighbours would wait for it."""


class CompletenessError(ScheduleError):
    """A computation or a reduction is missing, there twice, or out of range."""


class PlacementError(ScheduleError):
    """A stage is used on another rank than its own, or while its parameters are sharded."""


class LocalOrderError(ScheduleError):
    """In one row something stands before what it needs, or before what is added to a sum before it."""


class CycleError(ScheduleError):
    """Computations of several ranks wait for each other."""


class MatchingError(ScheduleError):
    """A send without its receive, or in another order than the receives of its channel."""


class DeadlockError(ScheduleError):
    """On some transport ranks wait for each other's transfers for ever."""


class MemoryCapError(ScheduleError):
    """A rank keeps more bytes, or more microbatches, than it may."""


class CollectiveOrderError(ScheduleError):
    """Members of a collective do not enter it in one order."""


class AlternationError(ScheduleError):
    """A step leaves something behind that the next one would find."""


BY_CHECK: dict[str, type[ScheduleError]] = {
    "empty_stages": EmptyStageError,
    "completeness": CompletenessError,
    "placement": PlacementError,
    "local_order": LocalOrderError,
    "acyclicity": CycleError,
    "matching": MatchingError,
    "deadlock": DeadlockError,
    "memory_cap": MemoryCapError,
    "collective_order": CollectiveOrderError,
    "alternation": AlternationError,
}
