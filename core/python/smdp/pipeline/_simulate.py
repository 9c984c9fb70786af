"""Simulates the timing and memory of schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from smdp import _core

from . import _costs, _picture
from ._costs import PerStage
from ._schedule import Schedule, core_of


class TimedAction(NamedTuple):
    """An action with its start and end time."""

    action: str
    start: float
    end: float


class Link(NamedTuple):
    """The transfers from one rank to another."""

    source: int
    target: int
    transfers: int
    busy: float  # time during which at least one transfer is in progress


class Simulation:
    """The result of simulate(). Times are in the unit of the costs."""

    __slots__ = ("_core", "_schedule")

    def __init__(self, core: _core.PipelineSimulation, schedule: Schedule) -> None:
        self._core = core
        self._schedule = schedule

    @property
    def makespan(self) -> float:
        """Time from the first start to the last end over all ranks."""
        return self._core.makespan

    @property
    def span(self) -> float:
        """The longest time from a rank's first start to the same rank's last end."""
        return self._core.span

    @property
    def bubble(self) -> float:
        """The idle fraction of the ranks' time: 1 - work / (ranks x makespan)."""
        return self._core.bubble

    @property
    def work(self) -> float:
        """Total time of all computations."""
        return self._core.work

    @property
    def peak_activations(self) -> list[float]:
        """The most bytes that each rank keeps at the same time."""
        return self._core.peak_activations

    @property
    def peak_action(self) -> list[str | None]:
        """The action during which each rank reaches its peak, or None if the rank keeps no bytes."""
        return [
            None if index < 0 else row[index]
            for row, index in zip(self._schedule.rows, self._core.peak_action, strict=True)
        ]

    @property
    def timeline(self) -> list[list[TimedAction]]:
        """The actions of each rank with their times."""
        return [
            [TimedAction(action, *interval) for action, interval in zip(row, times, strict=True)]
            for row, times in zip(self._schedule.rows, self._core.timeline(), strict=True)
        ]

    @property
    def links(self) -> list[Link]:
        """The transfers between ranks, ordered by source, then target."""
        return [Link(*link) for link in self._core.links()]

    def draw(self, path: str | Path | None = None, *, width: int = 120) -> str:
        """Draws the timeline; see Schedule.draw().

        Raises:
            ImportError: A path is given, but matplotlib is not installed.
        """
        if path is not None:
            _picture.save(self._schedule.rows, self._core.timeline(), path, self._schedule.name)
        return _core.pipeline_gantt(self._schedule._core, self._core, _costs.integer("width", width))

    def plot(self, axis: Any) -> None:
        """Draws the timeline on matplotlib axes, with one bar per action, colored by its kind."""
        _picture.plot(axis, self._schedule.rows, self._core.timeline(), self._schedule.name)

    def chrome_trace(self) -> str:
        """Returns JSON for ui.perfetto.dev and chrome://tracing, with one second per unit of time."""
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
    """Simulates a schedule exactly, event by event.

    A rank runs its actions in order. A computation starts when the rank is free and its inputs have arrived.
    Sends do not block a rank.

    Args:
        schedule: The schedule. Without transfers in it, values are transferred implicitly.
        forward: Seconds of F per virtual stage: one number for all, or one for each.
        backward_input: Seconds of I per virtual stage. B takes the time of I and W.
        backward_weight: Seconds of W per virtual stage.
        hop: Seconds from the end of a computation to the start of the next one on another rank.
        activation_bytes: Bytes of a microbatch's activations per virtual stage, kept from the start of F to
            the end of B or W.
        stash_bytes: The part of these bytes that is kept between I and W. Default: all.
        receive_bytes: Bytes of a receive buffer, kept from RECV to the end of the action that uses it.
        unshard: Seconds that an UNSHARD blocks the rank. The default of 0, here and below, means that other
            streams hide the action.
        reduce_grad: Seconds of a REDUCE_GRAD.
        reduce_tied: Seconds of a REDUCE_TIED, which its members enter together.
        reduce_norm: Seconds of a REDUCE_NORM, which all ranks enter together.
        offload: Seconds of an OFFLOAD.
        reload: Seconds of a RELOAD.

    Raises:
        ValueError: A cost is negative, not finite, or for a different number of stages; or the schedule
            deadlocks.
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
    """Returns lower bounds of the makespan and the span over all orders of the same work on the same ranks.

    Raises:
        ValueError: A cost is invalid, as in simulate().
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
