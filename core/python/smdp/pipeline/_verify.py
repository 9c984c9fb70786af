"""Verification that a schedule can be executed."""

from __future__ import annotations

from collections.abc import Sequence

from smdp import _core
from smdp._shown import shown

from . import _costs
from ._costs import PerStage
from ._errors import BY_CHECK
from ._schedule import Schedule, core_of

TRANSPORTS = ("rendezvous", "buffered", "single_stream")


def _names(name: str, value: str | Sequence[str] | None) -> list[str]:
    """Returns a list of names. None gives an empty list, which stands for all names.

    Raises:
        ValueError: The list is empty, so nothing would be verified.
    """
    if value is None:
        return []
    found = _costs.names(name, value)
    if not found:
        raise ValueError(
            f"[smdp] {name} = {shown(value, 120)} is not valid; allowed: at least one name, or None for all"
        )
    return found


def _cores(name: str, schedules: Sequence[Schedule]) -> list[_core.PipelineSchedule]:
    try:
        return [core_of(schedule) for schedule in schedules]
    except TypeError:
        raise TypeError(
            f"[smdp] {name} = {shown(schedules)} is not valid; allowed: a list of smdp.pipeline.Schedule"
        ) from None


def verify(
    schedule: Schedule,
    *,
    checks: str | Sequence[str] | None = None,
    transports: str | Sequence[str] | None = None,
    buffers: int = 1,
    memory_cap: float | None = None,
    activation_bytes: PerStage = 1.0,
    stash_bytes: PerStage | None = None,
    receive_bytes: PerStage = 0.0,
    active_microbatches: int | None = None,
    replicas: Sequence[Schedule] = (),
    alternates: Sequence[Schedule] = (),
) -> None:
    """Verifies that a schedule is complete, correctly ordered, free of deadlocks, and within its bounds.

    Args:
        schedule: The schedule, with or without transfers. The checks "matching" and "deadlock" apply only to
            transfers.
        checks: Names of the checks to run. Default: empty_stages, completeness, placement, local_order,
            acyclicity, matching, deadlock, memory_cap, collective_order, alternation.
        transports: Transports on which the schedule must not deadlock: "rendezvous" (no buffers), "buffered",
            "single_stream" (one in-order stream per pair of ranks, like NCCL). Default: all three.
        buffers: Number of messages that the buffered transport holds per pair of ranks and direction.
        memory_cap: The most bytes per rank. Default: no limit.
        activation_bytes: Bytes of activations per virtual stage, as in simulate().
        stash_bytes: As in simulate().
        receive_bytes: As in simulate().
        active_microbatches: The most microbatches that a rank may have in flight. Default: no limit.
        replicas: Schedules of data-parallel replicas, whose ranks must enter the same collectives.
        alternates: Schedules that run on the same ranks between steps of this one, e.g. for evaluation.

    Raises:
        ScheduleError: A check failed; the subclass belongs to the first check that did.
        ValueError: An argument is invalid.
    """
    core = core_of(schedule)
    violation = _core.pipeline_verify(
        core,
        checks=_names("checks", checks),
        transports=_names("transports", transports) or list(TRANSPORTS),
        buffers=_costs.integer("buffers", buffers),
        costs=_costs.make(
            core.stages,
            forward=1.0,
            backward_input=1.0,
            backward_weight=1.0,
            activation_bytes=activation_bytes,
            stash_bytes=stash_bytes,
            receive_bytes=receive_bytes,
        ),
        memory_cap=None if memory_cap is None else _costs.number("memory_cap", memory_cap),
        active_microbatches=0
        if active_microbatches is None
        else _costs.integer("active_microbatches", active_microbatches),
        replicas=_cores("replicas", replicas),
        alternates=_cores("alternates", alternates),
    )
    if violation is not None:
        raise BY_CHECK[violation.check](
            violation.message,
            violation.check,
            violation.rank,
            violation.stage,
            violation.microbatch,
            violation.action,
        )
