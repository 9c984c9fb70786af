"""Schedules by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from smdp import _core
from smdp._shown import shown

from . import _costs
from ._costs import PerStage
from ._schedule import Schedule


class ScheduleInfo(NamedTuple):
    """What a schedule is."""

    name: str
    description: str  # one line
    usual_virtual_stages: int  # per rank, unless somebody wants another number
    virtual_stages: int | None  # the only number per rank that it can have; None: any
    placement: str | None  # "loop" or "v"; None: either
    is_split: bool  # it has, or may have, input and weight gradients apart
    takes_any_placement: bool  # its virtual stages may lie on any ranks in any order


_INFOS = {
    name: ScheduleInfo(name, line, usual, only or None, placement, is_split, takes_any)
    for name, line, usual, only, placement, is_split, takes_any in _core.pipeline_schedules()
}

SCHEDULES: dict[str, str] = {name: info.description for name, info in _INFOS.items()}
"""Names of the schedules, and what each is in one line."""

_LARGEST_STAGES = 1 << 16


def schedule_info(name: str) -> ScheduleInfo:
    """Give what a schedule is.

    Raises:
        ValueError: There is no such schedule.
    """
    if name not in _INFOS:
        raise ValueError(f"[smdp] there is no schedule {shown(name)}; allowed: {', '.join(_INFOS)}")
    return _INFOS[name]


def usual_virtual_stages(name: str) -> int:
    """Give the number of virtual stages per rank that a schedule has unless somebody wants another one.

    1 for names that are none, so that generate() may refuse them.
    """
    return _INFOS[name].usual_virtual_stages if name in _INFOS else 1


def generate(
    name: str,
    *,
    stages: int,
    microbatches: int,
    virtual_stages: int = 1,
    active_microbatches: int | None = None,
    forward: PerStage = 1.0,
    backward_input: PerStage = 1.0,
    backward_weight: PerStage = 1.0,
    hop: float = 0.0,
    activation_bytes: PerStage = 1.0,
    memory_cap: float | None = None,
    placement: str | None = None,
    rank_of: Sequence[int] | None = None,
) -> Schedule:
    """Make a schedule of computations; Schedule.lower() adds communication.

    Args:
        name: One of SCHEDULES.
        stages: Pipeline stages, one per rank.
        microbatches: Number of microbatches.
        virtual_stages: Per rank. Schedules in a V have exactly 2, auto at most 64.
        active_microbatches: For smp_interleaved: most that are under way. Default: stages + 2.
        forward: Seconds per virtual stage. Only smp_interleaved, zb_1p, zb_2p, v_half, v_min and auto look at
            times and bytes.
        backward_input: Seconds per virtual stage of the input gradient.
        backward_weight: Seconds per virtual stage of the weight gradient.
        hop: Seconds from rank to rank.
        activation_bytes: Per virtual stage, of a microbatch.
        memory_cap: For auto: most bytes of activations per rank.
        placement: For forward_only: "v" beside a schedule in a V, else "loop", the default.
        rank_of: Rank of each virtual stage, in place of `virtual_stages` and `placement`. Schedules whose
            `schedule_info` says so take any ranks in any order; others take their own placement only.

    Raises:
        ValueError: There is no such schedule, or it cannot have one of the numbers; the message names the
            rule and the nearest number that it can have.
    """
    stages = _costs.integer("stages", stages)
    virtual_stages = _costs.integer("virtual_stages", virtual_stages)
    ranks = [] if rank_of is None else _costs.integers("rank_of", rank_of)
    count = len(ranks) or stages * virtual_stages
    costs = None
    if 0 < count <= _LARGEST_STAGES:  # the core refuses others
        costs = _costs.make(
            count,
            forward=forward,
            backward_input=backward_input,
            backward_weight=backward_weight,
            hop=hop,
            activation_bytes=activation_bytes,
        )
    return Schedule(
        _core.pipeline_generate(
            _costs.text("schedule", name),
            stages=stages,
            microbatches=_costs.integer("microbatches", microbatches),
            virtual_stages=virtual_stages,
            active_microbatches=0
            if active_microbatches is None
            else _costs.integer("active_microbatches", active_microbatches),
            costs=costs,
            memory_cap=None if memory_cap is None else _costs.number("memory_cap", memory_cap),
            placement=None if placement is None else _costs.text("placement", placement),
            rank_of=ranks,
        )
    )
