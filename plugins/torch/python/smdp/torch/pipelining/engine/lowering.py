"""What a schedule of computations becomes before a rank executes it.

The features of a pipeline decide. Each one says which of the core's passes over the whole table it needs, and
may then put actions of its own into a rank's row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypedDict

from smdp import pipeline as schedules
from smdp.torch.pipelining.engine.actions import Action, read_row
from smdp.torch.pipelining.interpreter.plan import Plan


class Passes(TypedDict, total=False):
    """Passes over a table, as `smdp.pipeline.Schedule.lower()` takes them; what is left out does not run."""

    skip_edges: Sequence[tuple[int, int]]
    unshard: int
    offload: Sequence[int]
    offload_horizon: int
    reduce_grad: bool
    tied: Sequence[Sequence[int]]
    reduce_norm: bool
    send_recv: bool


class Feature(Protocol):
    """What changes the table of a step."""

    def passes(self, plan: Plan, *, has_backward: bool) -> Passes:
        """Returns the passes that this feature needs.

        Args:
            plan: What the recording of the step has found.
            has_backward: The step computes gradients.
        """

    def lower(self, row: list[Action], table: schedules.Schedule, rank: int, plan: Plan) -> list[Action]:
        """Returns a rank's row with actions that no pass adds."""


class Lowered(NamedTuple):
    """A table with everything that its execution needs.

    Attributes:
        table: The rows of all ranks, after all passes.
        row: That of one rank, with the actions that features have put into it.
    """

    table: schedules.Schedule
    row: list[Action]


def lower(
    schedule: schedules.Schedule, features: Iterable[Feature], plan: Plan, rank: int, *, has_backward: bool
) -> Lowered:
    """Returns the table and a rank's row, with what all features add, and proves that the table can run.

    Args:
        schedule: Computations only.
        features: Of the pipeline. Passes run in the core's order, and rows are changed in the order given.
        plan: What the recording of the step has found.
        rank: Within the pipeline.
        has_backward: The step computes gradients.

    Raises:
        ValueError: Two features ask for different variants of one pass, or the table cannot run.
    """
    features = list(features)
    passes: Passes = {"reduce_grad": False, "send_recv": False}
    asked: dict[str, str] = {}
    for feature in features:
        wanted = feature.passes(plan, has_backward=has_backward)
        name = type(feature).__name__
        for each in wanted:
            if asked.setdefault(each, name) != name:
                raise ValueError(f"[smdp] {asked[each]} and {name} both ask for the pass {each!r}")
        passes.update(wanted)
    table = schedule.lower(**passes)
    schedules.verify(table)
    row = read_row(table.rows[rank])
    for feature in features:
        row = feature.lower(row, table, rank, plan)
    return Lowered(table, row)
