"""Handlers, each of which performs some kinds of schedule actions.

A feature with its own actions, such as gathering sharded parameters before a stage computes, is one more
handler. The handler also adds its actions to the table, see `lowering.py`. The executor knows handlers only
by the kinds of actions they perform.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from smdp import pipeline as schedules
from smdp.torch.pipelining.engine.actions import Action
from smdp.torch.pipelining.engine.lowering import Passes
from smdp.torch.pipelining.engine.step_run import StepRun
from smdp.torch.pipelining.interpreter.plan import Plan


class ActionHandler:
    """Performs actions of some kinds, and adds them to the table as a feature of `lowering.py`.

    Attributes:
        kinds: Names of these kinds, as they appear in a row.
    """

    kinds: frozenset[str] = frozenset()

    def passes(self, plan: Plan, *, has_backward: bool) -> Passes:
        """Returns the passes over the table that add this handler's actions. Default: none."""
        return {}

    def lower(self, row: list[Action], table: schedules.Schedule, rank: int, plan: Plan) -> list[Action]:
        """Returns a rank's row with actions that no pass adds. Default: the row unchanged."""
        return row

    def post(self, action: Action, run: StepRun) -> None:
        """Begins an action some computations before its place in the row. Default: does nothing."""

    def perform(self, action: Action, run: StepRun) -> None:
        """Performs an action at its place in the row."""
        raise NotImplementedError


class Handlers:
    """The handlers of a pipeline, by the kinds of actions they perform."""

    def __init__(self, handlers: Iterable[ActionHandler] = ()) -> None:
        self._all: list[ActionHandler] = []
        self._by_kind: dict[str, ActionHandler] = {}
        for handler in handlers:
            self.add(handler)

    def add(self, handler: ActionHandler) -> None:
        """Adds a handler; call it before the first step.

        Raises:
            ValueError: Another handler already performs one of its kinds.
        """
        taken = sorted(handler.kinds & self._by_kind.keys())
        if taken:
            other = type(self._by_kind[taken[0]]).__name__
            raise ValueError(f"[smdp] {type(handler).__name__} and {other} both perform {taken[0]}")
        self._all.append(handler)
        self._by_kind.update(dict.fromkeys(handler.kinds, handler))

    def check(self, row: Sequence[Action]) -> None:
        """Checks that every action of a row has a handler.

        Raises:
            ValueError: An action has no handler.
        """
        for action in row:
            if action.kind not in self._by_kind:
                raise ValueError(f"[smdp] no handler performs action {action.text}")

    def __iter__(self) -> Iterator[ActionHandler]:
        return iter(self._all)

    def __getitem__(self, kind: str) -> ActionHandler:
        return self._by_kind[kind]
