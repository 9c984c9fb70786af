"""Lowers a schedule of computations to the row of actions that a rank executes.

Each feature of a pipeline names the core's passes over the whole table that it needs, and may then add its
own actions to the row of a rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypedDict

from smdp import pipeline as schedules
from smdp.torch.pipelining.engine.actions import Action, read_row
from smdp.torch.pipelining.interpreter.plan import Plan


class Passes(TypedDict, total=False):
    """Arguments of `smdp.pipeline.Schedule.lower()`; a pass that is left out does not run."""

    skip_edges: Sequence[tuple[int, int]]
    unshard: int
    offload: Sequence[int]
    offload_horizon: int
    reduce_grad: bool
    tied: Sequence[Sequence[int]]
    reduce_norm: bool
    send_recv: bool


class Feature(Protocol):
    """A feature that changes the table of a step."""

    def passes(self, plan: Plan, *, has_backward: bool) -> Passes:
        """Returns the passes that this feature needs.

        Args:
            plan: The plan recorded for the step.
            has_backward: Whether the step computes gradients.
        """

    def lower(self, row: list[Action], table: schedules.Schedule, rank: int, plan: Plan) -> list[Action]:
        """Returns a rank's row with actions that no pass adds."""


class Lowered(NamedTuple):
    """A table with all actions that its execution needs.

    Attributes:
        table: The rows of all ranks, after all passes.
        row: The row of one rank, with the actions added by features.
    """

    table: schedules.Schedule
    row: list[Action]


def lower(
    schedule: schedules.Schedule, features: Iterable[Feature], plan: Plan, rank: int, *, has_backward: bool
) -> Lowered:
    """Returns the table and a rank's row with the actions of all features; the table is verified.

    Args:
        schedule: A schedule of computations only.
        features: The features of the pipeline, in the order in which they change rows.
        plan: The plan recorded for the step.
        rank: The rank within the pipeline.
        has_backward: Whether the step computes gradients.

    Raises:
        ValueError: Two features request different variants of one pass, or the table cannot be executed.
    """
    features = list(features)
    passes: Passes = {"reduce_grad": False, "send_recv": False}
    asked: dict[str, str] = {}
    for feature in features:
        wanted = feature.passes(plan, has_backward=has_backward)
        name = type(feature).__name__
        for each in wanted:
            if asked.setdefault(each, name) != name:
                raise ValueError(f"[smdp] features {asked[each]} and {name} both request the pass {each!r}")
        passes.update(wanted)
    table = schedule.lower(**passes)
    schedules.verify(table)
    row = read_row(table.rows[rank])
    for feature in features:
        row = feature.lower(row, table, rank, plan)
    return Lowered(table, row)
