"""Cuts of blocks that are recomputed in groups."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from smdp import memory
from smdp.partition import Trace, Unit, partition
from smdp.torch.pipelining.pipelined.grouped_cut import GroupedCut

# The fourth block runs longest, so that the halves of the best cut differ.
BLOCKS = tuple(
    Unit(name=f"{place}", forward=3.0 if place == 3 else 1.0, activation_bytes=100, cut_bytes=100)
    for place in range(8)
)
TRACE = Trace(units=(*BLOCKS[:-1], Unit(name="7", forward=1.0, activation_bytes=100)))
JOINED = (0, *[100] * 7)
CUT = functools.partial(partition, ranks=2, microbatches=4, schedule="1f1b")


def bytes_of(cut: Any, trace: Trace = TRACE) -> list[float]:
    return [stage.activation_bytes for stage in cut(trace).stages]


@pytest.mark.parametrize(("policy", "size"), [("group_2", 2), ("group_3", 3), ("contiguous", None)])
def test_stages_keep_what_the_memory_model_says(policy: str, size: int | None) -> None:
    cut = GroupedCut(CUT, JOINED, [[unit.name for unit in BLOCKS]], size)
    sizes = tuple(len(stage.units) for stage in cut(TRACE).stages)
    # The model counts what a block gets from the one before; the first one gets as much here.
    expected = memory.estimate(TRACE, pipeline=2, stage_sizes=sizes, checkpointing=policy, in_flight=[1, 1])
    found = bytes_of(cut)
    assert found[1] == pytest.approx(expected.stages[1].activations, rel=0.1)
    assert found[0] == pytest.approx(expected.stages[0].activations + 100, rel=0.1)


def test_blocks_that_do_not_follow_each_other_form_no_groups() -> None:
    names = [unit.name for unit in BLOCKS]
    apart = GroupedCut(CUT, [0] * 8, [names], 2)
    assert bytes_of(apart) == bytes_of(CUT)
    in_two_lists = GroupedCut(CUT, JOINED, [names[:1], names[1:2]], None)
    assert bytes_of(in_two_lists) == bytes_of(CUT)


def test_groups_meet_a_cap_that_single_blocks_exceed() -> None:
    capped = functools.partial(CUT, memory_cap=500)  # two microbatches in flight
    with pytest.raises(ValueError, match="memory_cap"):
        capped(TRACE)
    found = GroupedCut(capped, JOINED, [[unit.name for unit in BLOCKS]], 2)(TRACE)
    assert max(found.peak_bytes) <= 500
