"""The exceptions of verify(), one class per check."""

from __future__ import annotations


class ScheduleError(ValueError):
    """The schedule cannot be executed. The subclass tells which rule it breaks.

    Attributes:
        check: Name of the rule.
        rank: Rank of the offending action.
        stage: Virtual stage of the action; -1 if it has none.
        microbatch: Microbatch of the action; -1 if it has none.
        action: The action as text, e.g. "2F0". If an action is missing, the missing one.
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
    """A virtual stage has no actions, so its neighbors would wait for it forever."""


class CompletenessError(ScheduleError):
    """A computation or reduction is missing, duplicated, or out of range."""


class PlacementError(ScheduleError):
    """A stage is used on the wrong rank, or while its parameters are sharded."""


class LocalOrderError(ScheduleError):
    """On one rank, an action precedes another that it depends on, or that must be summed before it."""


class CycleError(ScheduleError):
    """Computations on several ranks wait for each other in a cycle."""


class MatchingError(ScheduleError):
    """A send has no receive, or the sends and receives of a channel are in different orders."""


class DeadlockError(ScheduleError):
    """On at least one of the transports, ranks wait for each other's transfers forever."""


class MemoryCapError(ScheduleError):
    """A rank keeps more bytes or more microbatches than allowed."""


class CollectiveOrderError(ScheduleError):
    """The members of collectives do not enter them in the same order."""


class AlternationError(ScheduleError):
    """A step leaves state behind that the next step would encounter."""


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
