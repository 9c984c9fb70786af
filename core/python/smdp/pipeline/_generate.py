"""Generates schedules by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from smdp import _core
from smdp._shown import shown

from . import _costs
from ._costs import PerStage
from ._schedule import Schedule


class ScheduleInfo(NamedTuple):
    """Properties of a schedule."""

    name: str
    description: str  # one line
    usual_virtual_stages: int  # default number of virtual stages per rank
    virtual_stages: int | None  # the only supported number per rank; None: any number
    placement: str | None  # "loop" or "v"; None: either
    is_split: bool  # whether input and weight gradients are, or may be, separate actions
    takes_any_placement: bool  # whether virtual stages may be on any ranks in any order


_INFOS = {
    name: ScheduleInfo(name, line, usual, only or None, placement, is_split, takes_any)
    for name, line, usual, only, placement, is_split, takes_any in _core.pipeline_schedules()
}

SCHEDULES: dict[str, str] = {name: info.description for name, info in _INFOS.items()}
"""Names of the schedules, with a one-line description of each."""

_LARGEST_STAGES = 1 << 16


def schedule_info(name: str) -> ScheduleInfo:
    """Returns the properties of a schedule.

    Raises:
        ValueError: There is no such schedule.
    """
    if name not in _INFOS:
        raise ValueError(f"[smdp] there is no schedule {shown(name)}; allowed: {', '.join(_INFOS)}")
    return _INFOS[name]


def usual_virtual_stages(name: str) -> int:
    """Returns the default number of virtual stages per rank of a schedule.

    Unknown names give 1, so that generate() can report them.
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
    """Generates a schedule of computations. Schedule.lower() adds communication to it.

    Args:
        name: One of SCHEDULES.
        stages: Number of pipeline stages, one per rank.
        microbatches: Number of microbatches.
        virtual_stages: Virtual stages per rank. V-shaped schedules require 2; auto supports up to 64.
        active_microbatches: For smp_interleaved: the most microbatches in flight. Default: stages + 2.
        forward: Seconds of the forward per virtual stage: one number for all, or one for each. Only
            smp_interleaved, zb_1p, zb_2p, v_half, v_min and auto use times and bytes.
        backward_input: Seconds of the input gradient per virtual stage.
        backward_weight: Seconds of the weight gradient per virtual stage.
        hop: Seconds of a transfer between ranks.
        activation_bytes: Bytes of a microbatch's activations per virtual stage.
        memory_cap: For auto: the most bytes of activations per rank.
        placement: For forward_only: "v" if it runs beside a V-shaped schedule, otherwise "loop". Default:
            "loop".
        rank_of: Rank of each virtual stage, instead of `virtual_stages` and `placement`. Schedules with
            `schedule_info(name).takes_any_placement` accept any ranks in any order; the others accept only
            their own placement.

    Raises:
        ValueError: There is no such schedule, or it does not support one of the numbers. The message has the
            rule and the nearest supported number.
    """
    stages = _costs.integer("stages", stages)
    virtual_stages = _costs.integer("virtual_stages", virtual_stages)
    ranks = [] if rank_of is None else _costs.integers("rank_of", rank_of)
    count = len(ranks) or stages * virtual_stages
    costs = None
    if 0 < count <= _LARGEST_STAGES:  # the core rejects other values
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
