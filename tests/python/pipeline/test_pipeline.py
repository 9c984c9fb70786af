"""`smdp.pipeline`: the surface. What schedules are worth is shown in tests/core/pipeline."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest

from smdp import pipeline


@pytest.mark.parametrize("name", pipeline.SCHEDULES)
def test_every_schedule_is_made_verified_and_written(name: str) -> None:
    virtual = 2 if name in {"zb_v", "v_half", "v_min", "dualpipe_v"} else 1
    schedule = pipeline.generate(name, stages=3, microbatches=6, virtual_stages=virtual)
    pipeline.verify(schedule)
    lowered = schedule.lower(unshard=2, offload=[0], tied=[(0, schedule.stages - 1)])
    pipeline.verify(lowered, replicas=[lowered])
    assert pipeline.Schedule.from_json(lowered.to_json()) == lowered
    assert pickle.loads(pickle.dumps(lowered)) == lowered
    back = pipeline.Schedule.from_csv(lowered.to_csv(), microbatches=6)
    assert back.rows == lowered.rows and back.rank_of == lowered.rank_of
    assert back.to_csv() == lowered.to_csv()


def test_simulation_of_1f1b() -> None:
    schedule = pipeline.generate("1f1b", stages=4, microbatches=8)
    result = pipeline.simulate(schedule, forward=1, backward_input=1, backward_weight=1, activation_bytes=10)
    assert result.makespan == 33
    assert result.bubble == pytest.approx(1 - 4 * 24 / (4 * 33))
    assert result.peak_activations == [40, 30, 20, 10]
    assert result.peak_action[0] == "0F3"
    assert result.timeline[3][0] == ("3F0", 3, 4)
    assert pipeline.lower_bounds(schedule, forward=1, backward_input=1, backward_weight=1) == (33, 24)
    hops = pipeline.simulate(schedule, forward=1, backward_input=1, backward_weight=1, hop=0.25)
    assert {(link.source, link.target): link.transfers for link in hops.links}[0, 1] == 8
    assert hops.links[0].busy == 2


def test_times_of_each_stage() -> None:
    schedule = pipeline.generate("gpipe", stages=2, microbatches=2)
    result = pipeline.simulate(schedule, forward=[1, 3], backward_input=[1, 2], backward_weight=0)
    assert result.makespan == 1 + 3 + 3 + 2 + 2 + 1
    with pytest.raises(ValueError, match=r"forward has 3 values, the schedule 2 virtual stages"):
        pipeline.simulate(schedule, forward=[1, 2, 3], backward_input=1, backward_weight=1)


def test_auto_keeps_within_the_cap_and_beats_what_it_may() -> None:
    unlimited = pipeline.generate("auto", stages=4, microbatches=8)
    tight = pipeline.generate("auto", stages=4, microbatches=8, memory_cap=2)
    pipeline.verify(tight, memory_cap=2)
    times = {"forward": 1, "backward_input": 1, "backward_weight": 1}
    assert pipeline.simulate(unlimited, **times).makespan <= pipeline.simulate(tight, **times).makespan
    with pytest.raises(ValueError, match=r"memory_cap=0\.5.* the smallest cap that would do is 1"):
        pipeline.generate("auto", stages=4, microbatches=8, memory_cap=0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stages": 0}, r"stages=0 is not valid; allowed: 1 to"),
        ({"stages": 10**12}, r"stages=1000000000000 is not valid"),
        ({"microbatches": -1}, r"microbatches=-1 is not valid"),
        ({"virtual_stages": 3}, r"1f1b has exactly 1 virtual stage.*interleaved_1f1b"),
        ({"virtual_stages": 10**6}, r"virtual_stages=1000000 is not valid"),
        ({"forward": float("nan")}, r"forward\[0\]=nan is not valid"),
        ({"backward_weight": -1}, r"backward_weight\[0\]=-1.0* is not valid"),
        ({"hop": float("inf")}, r"hop=inf is not valid"),
        ({"memory_cap": 0}, r"memory_cap=0.0* is not valid"),
        ({"active_microbatches": -3}, r"active_microbatches=-3 is not valid"),
    ],
)
def test_wrong_numbers_are_named(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pipeline.generate("1f1b", **({"stages": 4, "microbatches": 8} | arguments))  # type: ignore[arg-type]


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"there is no schedule '2f2b'; allowed: gpipe, .*auto"):
        pipeline.generate("2f2b", stages=2, microbatches=2)
    schedule = pipeline.generate("1f1b", stages=2, microbatches=2)
    with pytest.raises(ValueError, match=r"check='order' is not valid; allowed: empty_stages"):
        pipeline.verify(schedule, checks=["order"])
    with pytest.raises(ValueError, match=r"transport='tcp' is not valid; allowed: rendezvous"):
        pipeline.verify(schedule, transports=["tcp"])
    with pytest.raises(ValueError, match=r"dualpipe_v .* microbatches=7.* 8"):
        pipeline.generate("dualpipe_v", stages=4, microbatches=7, virtual_stages=2)
    with pytest.raises(TypeError, match=r"microbatches=2\.5 is not valid; allowed: an integer"):
        pipeline.generate("1f1b", stages=2, microbatches=2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"forward='fast' is not valid"):
        pipeline.generate("1f1b", stages=2, microbatches=2, forward="fast")  # type: ignore[arg-type]


def test_what_is_no_number_or_no_schedule_is_told() -> None:
    schedule = pipeline.generate("1f1b", stages=2, microbatches=2)
    times = {"forward": 1, "backward_input": 1, "backward_weight": 1}
    with pytest.raises(TypeError, match=r"forward='12' is not valid"):
        pipeline.simulate(schedule, **times | {"forward": "12"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"hop='x' is not valid"):
        pipeline.simulate(schedule, **times, hop="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"forward\[0\]=1000.* is not valid; allowed: 0 to 1e100"):
        pipeline.simulate(schedule, **times | {"forward": 1e308})
    with pytest.raises(TypeError, match="'1f1b' is no schedule"):
        pipeline.verify("1f1b")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="None is no schedule"):
        pipeline.simulate(None, **times)  # type: ignore[arg-type]
    pipeline.verify(schedule, checks="acyclicity", transports="rendezvous")
    nothing = pipeline.simulate(schedule, forward=0, backward_input=0, backward_weight=0)
    assert nothing.bubble == 0 and nothing.draw() == "rank 0 \nrank 1 \n"


def test_violations_are_errors_of_their_own() -> None:
    schedule = pipeline.Schedule.from_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B1,1B0\n")
    with pytest.raises(pipeline.CycleError, match="rank 1 at 1F1 waits for 0F1") as caught:
        pipeline.verify(schedule)
    error = caught.value
    assert isinstance(error, pipeline.ScheduleError) and isinstance(error, ValueError)
    assert (error.check, error.rank, error.stage, error.microbatch, error.action) == (
        "acyclicity",
        0,
        0,
        0,
        "0B0",
    )
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is pipeline.CycleError and str(copy) == str(error) and copy.action == "0B0"
    with pytest.raises(ValueError, match="stops before its end"):
        schedule.draw()
    with pytest.raises(pipeline.MemoryCapError, match="active_microbatches is 1"):
        pipeline.verify(pipeline.generate("1f1b", stages=2, microbatches=4), active_microbatches=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "stage 0 is in no line"),
        ("0F0,0X0", r"line 1, cell 2: '0X0' is no action: its kind is unknown"),
        ("0F0\n1F", r"line 2, cell 1: '1F' is no action: it lacks a microbatch"),
        ("5F0", "stage 0 is in no line"),
        ("99999999F0", "stage 99999999 is not valid"),
        ("0F99999999999", "too large"),
        ("0F1000000000", "microbatches"),
        ("(0F0;0F1)OVERLAP_F_B", "a pair is an F, then a B or an I"),
    ],
)
def test_csv_that_is_none(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pipeline.Schedule.from_csv(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an object"),
        ("[]", "an object"),
        ('{"rows": []}', "'microbatches' is missing"),
        ('{"rows": [["0F0"]], "rank_of": [0], "microbatches": 1.5}', "an integer"),
        ('{"rows": [["0F0"]], "rank_of": [3], "microbatches": 1}', r"rank_of\[0\]=3 is not valid"),
        ('{"rows": [["0Z0"]], "rank_of": [0], "microbatches": 1}', r"rows\[0\]\[0\]: '0Z0' is no action"),
        ('{"colour": 1}', "there is no field 'colour'"),
        ('{"version": 2}', "version=2 is not valid"),
        ('{"name": "a", "name": "b"}', "twice"),
    ],
)
def test_json_that_is_none(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pipeline.Schedule.from_json(text)


def test_json_is_json() -> None:
    schedule = pipeline.generate("1f1b", stages=2, microbatches=3).lower(skip_edges=[])
    document = json.loads(schedule.to_json())
    assert document["rank_of"] == [0, 1] and document["microbatches"] == 3
    assert document["rows"] == schedule.rows


def test_drawing_and_trace() -> None:
    schedule = pipeline.generate("1f1b", stages=2, microbatches=3)
    assert schedule.draw().splitlines() == ["rank 0 01..aa2bb.cc", "rank 1 .0aa1bb2cc.."]
    assert all(len(line) <= 40 for line in schedule.draw(width=40).splitlines())
    with pytest.raises(ValueError, match="width=3 is not valid"):
        schedule.draw(width=3)
    result = pipeline.simulate(schedule, forward=1, backward_input=1, backward_weight=1)
    assert result.draw() == schedule.draw()
    events = json.loads(result.chrome_trace())["traceEvents"]
    first = next(event for event in events if event["ph"] == "X")
    assert first["name"] == "0F0" and first["dur"] == 1e6


def test_a_picture_needs_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = pipeline.generate("1f1b", stages=2, microbatches=3)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        schedule.draw(tmp_path / "a.png")


def test_a_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws the pictures")
    pipeline.generate("zb_v", stages=2, microbatches=3, virtual_stages=2).draw(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
