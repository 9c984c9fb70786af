"""What performs the actions of a schedule: each handler some kinds of them.

A feature that adds actions of its own, such as gathering sharded parameters before a stage computes, is a
handler more. The executor knows none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smdp.torch.pipelining.engine.actions import Action
from smdp.torch.pipelining.engine.step_run import StepRun


class ActionHandler:
    """Performs actions of some kinds.

    Attributes:
        kinds: Names of those, as a row has them.
    """

    kinds: frozenset[str] = frozenset()

    def lower(self, row: list[Action]) -> list[Action]:
        """Returns a rank's row with the actions of this handler in it. Default: as the schedule has it."""
        return row

    def post(self, action: Action, run: StepRun) -> None:
        """Begins an action that is some computations ahead, in the order of the row. Default: nothing."""

    def perform(self, action: Action, run: StepRun) -> None:
        """Performs an action at its place in the row."""
        raise NotImplementedError


class Handlers:
    """The handlers of a pipeline, by the kinds of their actions."""

    def __init__(self, handlers: Iterable[ActionHandler] = ()) -> None:
        self._all: list[ActionHandler] = []
        self._by_kind: dict[str, ActionHandler] = {}
        for handler in handlers:
            self.add(handler)

    def add(self, handler: ActionHandler) -> None:
        """Adds a handler, before the first step.

        Raises:
            ValueError: Another handler performs one of its kinds.
        """
        taken = sorted(handler.kinds & self._by_kind.keys())
        if taken:
            other = type(self._by_kind[taken[0]]).__name__
            raise ValueError(f"[smdp] {type(handler).__name__} and {other} both perform {taken[0]}")
        self._all.append(handler)
        self._by_kind.update(dict.fromkeys(handler.kinds, handler))

    def lower(self, row: Sequence[Action]) -> list[Action]:
        """Returns a row with the actions of all handlers in it.

        Raises:
            ValueError: Nobody performs one of its actions.
        """
        lowered = list(row)
        for handler in self._all:
            lowered = handler.lower(lowered)
        for action in lowered:
            if action.kind not in self._by_kind:
                raise ValueError(f"[smdp] no handler performs action {action.text}")
        return lowered

    def __getitem__(self, kind: str) -> ActionHandler:
        return self._by_kind[kind]
