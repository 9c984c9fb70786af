"""Schedules on the clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from smdp import _core

from . import _costs, _picture
from ._costs import PerStage
from ._schedule import Schedule, core_of


class TimedAction(NamedTuple):
    """An action and when it ran."""

    action: str
    start: float
    end: float


class Link(NamedTuple):
    """What one rank sent another."""

    source: int
    target: int
    transfers: int
    busy: float  # seconds in which at least one transfer is under way


class Simulation:
    """What simulate() finds; times in the unit of the costs."""

    __slots__ = ("_core", "_schedule")

    def __init__(self, core: _core.PipelineSimulation, schedule: Schedule) -> None:
        self._core = core
        self._schedule = schedule

    @property
    def makespan(self) -> float:
        """Last end minus first start over all ranks."""
        return self._core.makespan

    @property
    def span(self) -> float:
        """The largest of the ranks' own last end minus own first start."""
        return self._core.span

    @property
    def bubble(self) -> float:
        """1 - work / (ranks x makespan)."""
        return self._core.bubble

    @property
    def work(self) -> float:
        """Time of all computations together."""
        return self._core.work

    @property
    def peak_activations(self) -> list[float]:
        """Most bytes that each rank keeps at once."""
        return self._core.peak_activations

    @property
    def peak_action(self) -> list[str | None]:
        """The action during which each rank comes to its peak; None where it keeps nothing."""
        return [
            None if index < 0 else row[index]
            for row, index in zip(self._schedule.rows, self._core.peak_action, strict=True)
        ]

    @property
    def timeline(self) -> list[list[TimedAction]]:
        """Every action of every rank with its times."""
        return [
            [TimedAction(action, *interval) for action, interval in zip(row, times, strict=True)]
            for row, times in zip(self._schedule.rows, self._core.timeline(), strict=True)
        ]

    @property
    def links(self) -> list[Link]:
        """Transfers from rank to rank, by source, then target."""
        return [Link(*link) for link in self._core.links()]

    def draw(self, path: str | Path | None = None, *, width: int = 120) -> str:
        """Draw the timeline; see Schedule.draw().

        Raises:
            ImportError: There is a path, but no matplotlib.
        """
        if path is not None:
            _picture.save(self._schedule.rows, self._core.timeline(), path, self._schedule.name)
        return _core.pipeline_gantt(self._schedule._core, self._core, _costs.integer("width", width))

    def plot(self, axis: Any) -> None:
        """Draw the timeline on matplotlib axes: one bar per action, forwards blue, input gradients green."""
        _picture.plot(axis, self._schedule.rows, self._core.timeline(), self._schedule.name)

    def chrome_trace(self) -> str:
        """Give JSON for ui.perfetto.dev and chrome://tracing, a unit of time taken for a second."""
        return _core.pipeline_chrome_trace(self._schedule._core, self._core)


def simulate(
    schedule: Schedule,
    *,
    forward: PerStage,
    backward_input: PerStage,
    backward_weight: PerStage,
    hop: float = 0.0,
    activation_bytes: PerStage = 1.0,
    stash_bytes: PerStage | None = None,
    receive_bytes: PerStage = 0.0,
    unshard: float = 0.0,
    reduce_grad: float = 0.0,
    reduce_tied: float = 0.0,
    reduce_norm: float = 0.0,
    offload: float = 0.0,
    reload: float = 0.0,
) -> Simulation:
    """Run a schedule on the clock: exactly, event by event.

    A rank runs its row in order; a computation starts when the rank is free and its inputs have come. Sends
    do not hold a rank up.

    Args:
        schedule: With or without transfers; without, values travel by themselves.
        forward: Seconds per virtual stage: one number for all, or one for each.
        backward_input: The same of I; B takes I and W.
        backward_weight: The same of W.
        hop: Seconds from the end of a computation to the start of the next one on another rank.
        activation_bytes: Per virtual stage, of a microbatch, from the start of F to the end of B or W.
        stash_bytes: What of them is left between I and W. Default: all.
        receive_bytes: Of a receive buffer, from RECV to the end of what consumes it.
        unshard: Seconds that an UNSHARD holds the rank up; so for the others. Default: streams hide them.
        reduce_grad: Of a REDUCE_GRAD.
        reduce_tied: Of a REDUCE_TIED, which its members enter together.
        reduce_norm: Of a REDUCE_NORM, which all ranks enter together.
        offload: Of an OFFLOAD.
        reload: Of a RELOAD.

    Raises:
        ValueError: A cost is negative, not finite, or for another number of stages; or the schedule stops
            half-way.
    """
    core = core_of(schedule)
    costs = _costs.make(
        core.stages,
        forward=forward,
        backward_input=backward_input,
        backward_weight=backward_weight,
        activation_bytes=activation_bytes,
        stash_bytes=stash_bytes,
        receive_bytes=receive_bytes,
        hop=hop,
        unshard=unshard,
        reduce_grad=reduce_grad,
        reduce_tied=reduce_tied,
        reduce_norm=reduce_norm,
        offload=offload,
        reload=reload,
    )
    return Simulation(_core.pipeline_simulate(core, costs), schedule)


def lower_bounds(
    schedule: Schedule,
    *,
    forward: PerStage,
    backward_input: PerStage,
    backward_weight: PerStage,
    hop: float = 0.0,
) -> tuple[float, float]:
    """Give the makespan and the span that no order of the same work on the same ranks can beat.

    Raises:
        ValueError: A cost is wrong, as in simulate().
    """
    core = core_of(schedule)
    costs = _costs.make(
        core.stages,
        forward=forward,
        backward_input=backward_input,
        backward_weight=backward_weight,
        activation_bytes=0.0,
        hop=hop,
    )
    return _core.pipeline_lower_bounds(core, costs)
