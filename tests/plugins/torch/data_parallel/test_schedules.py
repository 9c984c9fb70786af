"""Orders of torch.distributed.pipelining beside smdp's: equal but for looped BFS, never better."""

from __future__ import annotations

import contextlib
import csv
import io
from typing import Any

import pytest
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from smdp import pipeline

SAME = {
    "interleaved_1f1b": ("Interleaved1F1B", (2, 3, 4)),
    "interleaved_zero_bubble": ("InterleavedZeroBubble", (2, 3, 4)),
    "zb_v": ("ZBVZeroBubble", (2,)),
    "dualpipe_v": ("DualPipeV", (2,)),
}
# torch takes the microbatches backwards there, so that gradients are not added in the order of one process.
THEIRS = {"gpipe": "GPipe", "looped_bfs": "LoopedBFS"} | {ours: theirs for ours, (theirs, _) in SAME.items()}
COMPUTE = ("F", "I", "W", "B", "OVERLAP_F_B")


def torchs_rows(name: str, stages: int, microbatches: int, virtual: int) -> list[list[str]]:
    ops = get_schedule_ops(name, stages, microbatches, num_stages_per_rank=virtual)
    return [
        [str(action) for action in row if action is not None and action.computation_type.value in COMPUTE]
        for row in ops
    ]


@pytest.mark.parametrize("name", SAME)
def test_computations_are_in_torchs_order(name: str) -> None:
    theirs, virtual_stages = SAME[name]
    compared = 0
    for stages in (2, 3, 4, 5, 8):
        for microbatches in (1, 2, 3, 4, 5, 8, 10, 16, 24):
            for virtual in virtual_stages:
                with contextlib.suppress(ValueError):  # torch refuses this number of microbatches
                    expected = torchs_rows(theirs, stages, microbatches, virtual)
                    ours = pipeline.generate(
                        name, stages=stages, microbatches=microbatches, virtual_stages=virtual
                    )
                    assert ours.rows == expected, (name, stages, microbatches, virtual)
                    compared += 1
    assert compared >= 15


@pytest.mark.parametrize(("ours", "theirs"), THEIRS.items())
@pytest.mark.parametrize("hop", [0.0, 0.1])
def test_never_slower_than_torchs_order(ours: str, theirs: str, hop: float) -> None:
    virtual = 1 if ours == "gpipe" else 2
    times: dict[str, Any] = {"forward": 1, "backward_input": 1.2, "backward_weight": 0.7, "hop": hop}
    for stages, microbatches in ((2, 4), (4, 8), (4, 16), (8, 16)):
        text = "\n".join(",".join(row) for row in torchs_rows(theirs, stages, microbatches, virtual))
        torchs = pipeline.simulate(pipeline.Schedule.from_csv(text), **times)
        schedule = pipeline.generate(
            ours, stages=stages, microbatches=microbatches, virtual_stages=virtual, **times
        )
        assert pipeline.simulate(schedule, **times).makespan <= torchs.makespan * (1 + 1e-12)


def torchs_lowered_schedule(name: str) -> pipeline.Schedule:
    ops = get_schedule_ops(name, 4, 8, num_stages_per_rank=2, with_comms=True)
    text = "\n".join(",".join(str(action) for action in row if action is not None) for row in ops)
    return pipeline.Schedule.from_csv(text, microbatches=8)


@pytest.mark.parametrize("name", SAME)
def test_torchs_lowered_schedules_pass_the_verifier(name: str) -> None:
    pipeline.verify(torchs_lowered_schedule(SAME[name][0]))


def test_torchs_looped_bfs_adds_gradients_in_another_order() -> None:
    schedule = torchs_lowered_schedule("LoopedBFS")
    with pytest.raises(
        pipeline.LocalOrderError,
        match="4B6: microbatch 7 has added its weight gradient to stage 4 before microbatch 6; ",
    ):
        pipeline.verify(schedule)
    pipeline.verify(schedule, checks=["completeness", "placement", "acyclicity", "matching", "deadlock"])


def test_torchs_own_order_table_of_1f1b_is_refused() -> None:
    text = "\n".join(",".join(row) for row in torchs_rows("1F1B", 4, 8, 1))
    with pytest.raises(pipeline.CompletenessError, match="3F8") as caught:
        pipeline.verify(pipeline.Schedule.from_csv(text, microbatches=8))
    assert caught.value.rank == 3


@pytest.mark.parametrize("name", SAME)
def test_torch_reads_our_csv(name: str) -> None:
    from torch.distributed.pipelining.schedules import _Action

    schedule = pipeline.generate(name, stages=4, microbatches=8, virtual_stages=2).lower(unshard=3)
    for row, expected in zip(csv.reader(io.StringIO(schedule.to_csv())), schedule.rows, strict=True):
        assert [str(_Action.from_str(cell)) for cell in row] == expected
