"""`smdp.pipeline`: the surface. What schedules are worth is shown in tests/core/pipeline."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from smdp import pipeline


@pytest.mark.parametrize("name", pipeline.SCHEDULES)
def test_every_schedule_is_made_verified_and_written(name: str) -> None:
    virtual = pipeline.schedule_info(name).virtual_stages or 1
    schedule = pipeline.generate(name, stages=3, microbatches=6, virtual_stages=virtual)
    pipeline.verify(schedule)
    lowered = schedule.lower(unshard=2, offload=[0], tied=[(0, schedule.stages - 1)], reduce_norm=True)
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
    with pytest.raises(
        ValueError, match=r"forward is a list of 3 numbers; allowed: one number for each of the 2"
    ):
        pipeline.simulate(schedule, forward=[1, 2, 3], backward_input=1, backward_weight=1)


def test_auto_keeps_within_the_cap_and_beats_what_it_may() -> None:
    unlimited = pipeline.generate("auto", stages=4, microbatches=8)
    tight = pipeline.generate("auto", stages=4, microbatches=8, memory_cap=2)
    pipeline.verify(tight, memory_cap=2)
    times = {"forward": 1, "backward_input": 1, "backward_weight": 1}
    assert pipeline.simulate(unlimited, **times).makespan <= pipeline.simulate(tight, **times).makespan
    with pytest.raises(ValueError, match=r"memory_cap = 0\.5 is not valid; allowed: 1 bytes"):
        pipeline.generate("auto", stages=4, microbatches=8, memory_cap=0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stages": 0}, r"stages = 0 is not valid; allowed: an integer from 1 to"),
        ({"stages": 10**12}, r"stages = 1000000000000 is not valid"),
        ({"microbatches": -1}, r"microbatches = -1 is not valid"),
        (
            {"virtual_stages": 3},
            r"virtual_stages = 3 is not valid; allowed: 1 for 1f1b; interleaved_1f1b supports other numbers",
        ),
        ({"virtual_stages": 10**6}, r"virtual_stages = 1000000 is not valid"),
        ({"forward": float("nan")}, r"forward\[0\] = nan is not valid"),
        ({"backward_weight": -1}, r"backward_weight\[0\] = -1 is not valid"),
        ({"hop": float("inf")}, r"hop = inf is not valid"),
        ({"memory_cap": 0}, r"memory_cap = 0 is not valid"),
        ({"active_microbatches": -3}, r"active_microbatches = -3 is not valid"),
    ],
)
def test_wrong_numbers_are_named(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pipeline.generate("1f1b", **({"stages": 4, "microbatches": 8} | arguments))  # type: ignore[arg-type]


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"there is no schedule '2f2b'; allowed: gpipe, .*auto"):
        pipeline.generate("2f2b", stages=2, microbatches=2)
    schedule = pipeline.generate("1f1b", stages=2, microbatches=2)
    with pytest.raises(ValueError, match=r"check = 'order' is not valid; allowed: empty_stages"):
        pipeline.verify(schedule, checks=["order"])
    with pytest.raises(ValueError, match=r"transport = 'tcp' is not valid; allowed: rendezvous"):
        pipeline.verify(schedule, transports=["tcp"])
    with pytest.raises(ValueError, match=r"microbatches = 7 is not valid; allowed: 8 or more for dualpipe_v"):
        pipeline.generate("dualpipe_v", stages=4, microbatches=7, virtual_stages=2)
    with pytest.raises(TypeError, match=r"microbatches = 2\.5 is not valid; allowed: an integer"):
        pipeline.generate("1f1b", stages=2, microbatches=2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"forward = 'fast' is not valid"):
        pipeline.generate("1f1b", stages=2, microbatches=2, forward="fast")  # type: ignore[arg-type]


def test_what_is_no_number_or_no_schedule_is_told() -> None:
    schedule = pipeline.generate("1f1b", stages=2, microbatches=2)
    times = {"forward": 1, "backward_input": 1, "backward_weight": 1}
    with pytest.raises(TypeError, match=r"forward = '12' is not valid"):
        pipeline.simulate(schedule, **times | {"forward": "12"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"hop = 'x' is not valid"):
        pipeline.simulate(schedule, **times, hop="x")  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"forward\[0\] = 1e\+308 is not valid; allowed: a number from 0 to 1e\+100"
    ):
        pipeline.simulate(schedule, **times | {"forward": 1e308})
    with pytest.raises(TypeError, match="'1f1b' is not a schedule"):
        pipeline.verify("1f1b")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="None is not a schedule"):
        pipeline.simulate(None, **times)  # type: ignore[arg-type]
    pipeline.verify(schedule, checks="acyclicity", transports="rendezvous")
    nothing = pipeline.simulate(schedule, forward=0, backward_input=0, backward_weight=0)
    assert nothing.bubble == 0 and nothing.draw() == "rank 0 \nrank 1 \n"


TIMES = {"forward": 1, "backward_input": 1, "backward_weight": 1}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: pipeline.generate(None, stages=1, microbatches=1), r"schedule = None is not valid"),  # type: ignore[arg-type]
        (lambda s: pipeline.Schedule.from_csv(b""), r"text = b'' is not valid; allowed: a str"),  # type: ignore[arg-type]
        (
            lambda s: pipeline.Schedule.from_csv("\ud800"),
            r"text = '.ud800' is not valid: the character at index 0",
        ),
        (lambda s: pipeline.Schedule.from_json(7), r"text = 7 is not valid"),  # type: ignore[arg-type]
        (
            lambda s: s.lower(skip_edges=[("a", "b")]),
            r"skip_edges\[0\]\[0\] = 'a' is not valid; allowed: an integer",
        ),
        (
            lambda s: s.lower(skip_edges=[(0, 1, 2)]),
            r"skip_edges\[0\] = \(0, 1, 2\) is not valid; allowed: 2 int",
        ),
        (lambda s: s.lower(skip_edges=3), r"skip_edges = 3 is not valid"),
        (lambda s: s.lower(skip_edges=[(0, 2), (0, 2)]), r"skip edge = 0 -> 2 is not valid; allowed: .*once"),
        (lambda s: s.lower(offload=[2**40]), r"offload\[0\] = 1099511627776 is not valid"),
        (
            lambda s: s.lower(offload=[9]),
            r"a stage of offload = 9 is not valid; allowed: an integer from 0 to 2",
        ),
        (
            lambda s: pipeline.generate("1f1b", stages=10**5000, microbatches=1),
            "stages = an int of 16610 bits is not valid",
        ),
        (lambda s: pipeline.simulate(s, **TIMES | {"forward": 10**5000}), "forward = an int of 16610 bits"),
        (lambda s: s.lower(payloads=3), r"payloads = 3 is not valid; allowed: a mapping"),  # type: ignore[arg-type]
        (
            lambda s: s.lower(payloads={1: "bool[]"}),
            r"a key of payloads = 1 is not valid; allowed: 2 integers",
        ),  # type: ignore[dict-item]
        (lambda s: s.lower(payloads={(0, 1): 1}), r"payloads\[\(0, 1\)\] = 1 is not valid; allowed: a str"),  # type: ignore[dict-item]
        (
            lambda s: s.lower(payloads={(0, 1): "f32"}),
            r"payload = 'f32' is not valid; allowed: the dtype and shape of each tensor",
        ),
        (lambda s: s.lower(payloads={(0, 2): "bool[]"}), r"payload of stages = 0 -> 2 is not valid"),
        (lambda s: s.lower(payloads={(0, 1): "bool[]"}, send_recv=False), r"payloads belong to sends"),
        (lambda s: s.lower(reduce_norm="no"), r"reduce_norm = 'no' is not valid; allowed: True, False"),  # type: ignore[arg-type]
        (lambda s: s.lower(unshard=1), r"unshard = 1 is not valid; allowed: an integer from 2 "),
        (
            lambda s: s.lower(offload=[0], offload_horizon=0),
            r"offload_horizon = 0 is not valid; allowed: an integer from 1 ",
        ),
        (
            lambda s: s.lower(tied=[(0, 1), ()]),
            r"tied\[1\] = 0 stages is not valid; allowed: two or more diff",
        ),
        (
            lambda s: s.lower(tied=[(0, 1, 0)]),
            r"tied\[0\] = stage 0 twice is not valid; allowed: two or more",
        ),
        (lambda s: s.lower(tied=[0]), r"tied\[0\] = 0 is not valid; allowed: integers"),
        (lambda s: s.lower(send_recv=False).lower(), r"rank 0 already has 0REDUCE_GRAD"),
        (lambda s: s.draw(3), "path = 3 is not valid; allowed: a path"),  # type: ignore[arg-type]
        (lambda s: pipeline.Schedule(None), "cannot be created from None; use generate"),  # type: ignore[arg-type]
        (
            lambda s: pipeline.Schedule.from_csv("0F0\0"),
            r"'0F0\?' is not an action: there is text after it\. Write",
        ),
        (lambda s: pipeline.generate("1f1b", stages=True, microbatches=1), r"stages = True is not valid"),
        (lambda s: pipeline.simulate(s, **TIMES | {"forward": {0: 1, 1: 1, 2: 1}}), r"forward = \{0: 1, 1"),  # type: ignore[arg-type]
        (lambda s: pipeline.simulate(s, **TIMES | {"forward": {1, 2, 3}}), r"forward = \{1, 2, 3\} is not"),  # type: ignore[arg-type]
        (lambda s: pipeline.simulate(s, **TIMES | {"forward": b"abc"}), r"forward = b'abc' is not valid"),  # type: ignore[arg-type]
        (lambda s: pipeline.verify(s, checks=[]), r"checks = \[\] is not valid; allowed: at least one"),
        (
            lambda s: pipeline.verify(s, transports=()),
            r"transports = \(\) is not valid; allowed: at least one",
        ),
        (lambda s: pipeline.verify(s, checks=3), r"checks = 3 is not valid"),
        (lambda s: pipeline.verify(s, replicas=[1]), r"replicas = \[1\] is not valid"),
        (
            lambda s: pipeline.verify(s, replicas=[pipeline.generate("1f1b", stages=2, microbatches=2)]),
            r"replicas\[0\] = a schedule of 2 ranks is not valid; allowed: schedules of 3 ranks",
        ),
        (lambda s: pipeline.simulate(s, **TIMES | {"forward": -1e-9}), r"forward\[0\] = -1e-09 is not valid"),
        (lambda s: pipeline.Schedule.from_csv("x" + "\u00e9" * 40), "'x\u00e9*' is not an action"),
        (lambda s: pipeline.Schedule.from_json('{"' + "\u00e9" * 40), "string with its closing quote"),
        (
            lambda s: pipeline.generate("a" + "\u00e9" * 40, stages=1, microbatches=1),
            "no schedule 'a\u00e9*'",
        ),
        (lambda s: pipeline.verify(s, checks=["a" + "\u00e9" * 40]), "check = 'a\u00e9*' is not valid"),
        (
            lambda s: pipeline.generate("1f1b", stages=1, microbatches=1, placement="v"),
            "placement = v is not valid",
        ),
        (
            lambda s: pipeline.generate("auto", stages=1, microbatches=1, virtual_stages=800),
            "virtual_stages = 800",
        ),
        (lambda s: pipeline.schedule_info("2f2b"), "there is no schedule '2f2b'"),
    ],
)
def test_wrong_arguments_are_named(call: Callable[[pipeline.Schedule], object], message: str) -> None:
    schedule = pipeline.generate("1f1b", stages=3, microbatches=2)
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        call(schedule)
    assert str(caught.value).startswith("[smdp] ")
    assert not isinstance(caught.value, UnicodeError)


def test_times_may_be_numpys() -> None:
    schedule = pipeline.generate("1f1b", stages=3, microbatches=2, forward=np.float32(1))
    bare = pipeline.simulate(schedule, **TIMES, receive_bytes=0.0)
    for each in (np.ones(3), np.float32(1), np.int64(1), [1, 1, 1]):
        result = pipeline.simulate(
            schedule, forward=each, backward_input=each, backward_weight=each, receive_bytes=np.zeros(3)
        )
        assert result.makespan == bare.makespan and result.peak_activations == bare.peak_activations


def test_reductions_have_their_place() -> None:
    for text in ("0REDUCE_GRAD,0F0,0B0", "0F0,0I0,0REDUCE_GRAD,0W0"):
        with pytest.raises(pipeline.LocalOrderError, match="it is reduced after the last B or W"):
            pipeline.verify(pipeline.Schedule.from_csv(text))
    lowered = json.loads(pipeline.generate("1f1b", stages=2, microbatches=2).lower(tied=[[0, 1]]).to_json())
    lowered["rows"] = [[action for action in row if "TIED" not in action] for row in lowered["rows"]]
    with pytest.raises(pipeline.CompletenessError, match="0REDUCE_TIED0: the row lacks it"):
        pipeline.verify(pipeline.Schedule.from_json(json.dumps(lowered)))


def test_weight_gradients_are_added_in_the_order_of_microbatches() -> None:
    with pytest.raises(
        pipeline.LocalOrderError,
        match="0B0: microbatch 1 has added its weight gradient to stage 0 before microbatch 0; ",
    ) as caught:
        pipeline.verify(pipeline.Schedule.from_csv("0F0,0F1,0B1,0B0"))
    assert (caught.value.stage, caught.value.microbatch, caught.value.action) == (0, 0, "0B0")


def test_the_norm_is_reduced_by_every_rank() -> None:
    lowered = pipeline.generate("1f1b", stages=3, microbatches=2).lower(reduce_norm=True)
    assert [row[-1] for row in lowered.rows] == ["REDUCE_NORM"] * 3
    document = json.loads(lowered.to_json())
    document["rows"][1].pop()
    with pytest.raises(pipeline.CompletenessError, match="rank 1, REDUCE_NORM: the row lacks it") as caught:
        pipeline.verify(pipeline.Schedule.from_json(json.dumps(document)))
    assert caught.value.stage == -1
    times = {"forward": 1, "backward_input": 1, "backward_weight": 1}
    bare = pipeline.simulate(lowered, **times).makespan
    assert pipeline.simulate(lowered, **times, reduce_norm=0.25).makespan == bare + 0.25


def test_evaluation_stands_beside_a_v() -> None:
    train = pipeline.generate("zb_v", stages=4, microbatches=8, virtual_stages=2)
    evaluation = pipeline.generate("forward_only", stages=4, microbatches=8, virtual_stages=2, placement="v")
    pipeline.verify(train.lower(), alternates=[evaluation.lower()])
    with pytest.raises(pipeline.AlternationError):
        pipeline.verify(
            train, alternates=[pipeline.generate("forward_only", stages=4, microbatches=8, virtual_stages=2)]
        )


def test_what_schedules_are() -> None:
    any_ranks = pipeline.generate("smp_interleaved", stages=2, microbatches=4, rank_of=[0, 1, 0])
    assert any_ranks.rank_of == [0, 1, 0] and pipeline.schedule_info("smp_interleaved").takes_any_placement
    pipeline.verify(any_ranks.lower())
    with pytest.raises(ValueError, match="schedule '1f1b' cannot have virtual stages on ranks 0, 1, 0"):
        pipeline.generate("1f1b", stages=2, microbatches=4, rank_of=[0, 1, 0])
    info = pipeline.schedule_info("zb_v")
    assert (info.virtual_stages, info.placement, info.is_split) == (2, "v", True)
    assert pipeline.schedule_info("interleaved_1f1b").virtual_stages is None
    assert not pipeline.schedule_info("1f1b").is_split


def test_violations_are_errors_of_their_own() -> None:
    schedule = pipeline.Schedule.from_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")
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
        ("0F0,0X0", r"line 1, cell 2: '0X0' is not an action: its kind is unknown"),
        ("0F0\n1F", r"line 2, cell 1: '1F' is not an action: it has no microbatch"),
        ("5F0", "stage 0 is in no line"),
        ("99999999F0", "stage = 99999999 is not valid; allowed: an integer from 0 to 65535"),
        ("0F99999999999", "too large"),
        ("0F1000000000", "microbatches"),
        ("(0F0;0F1)OVERLAP_F_B", "a pair is an F followed by a B or an I"),
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
        ('{"rows": [["0F0"]], "rank_of": [3], "microbatches": 1}', r"rank_of\[0\] = 3 is not valid"),
        ('{"rows": [["0Z0"]], "rank_of": [0], "microbatches": 1}', r"rows\[0\]\[0\]: '0Z0' is not an action"),
        ('{"colour": 1}', "there is no field 'colour'"),
        ('{"version": 2}', "version = 2 is not valid"),
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


def test_what_travels_is_said_and_compared() -> None:
    schedule = pipeline.generate("1f1b", stages=3, microbatches=2)
    lowered = schedule.lower(payloads={(0, 1): "float32[8x512x768]", (1, 2): "bfloat16[8x512x768]"})
    pipeline.verify(lowered)
    assert lowered.rows[0][1] == "0SEND_F0:float32[8x512x768]"
    assert pickle.loads(pickle.dumps(lowered)) == lowered
    text = lowered.to_json().replace("1RECV_F0:float32[8x512x768]", "1RECV_F0:float32[8x512x512]")
    with pytest.raises(
        pipeline.MatchingError, match=r"x512\] where 0SEND_F0 .*x768\]: the shapes differ"
    ) as caught:
        pipeline.verify(pipeline.Schedule.from_json(text))
    assert (caught.value.rank, caught.value.action) == (1, "1RECV_F0")


def test_drawing_and_trace() -> None:
    schedule = pipeline.generate("1f1b", stages=2, microbatches=3)
    assert schedule.draw().splitlines() == ["rank 0 01..aa2bb.cc", "rank 1 .0aa1bb2cc.."]
    assert all(len(line) <= 40 for line in schedule.draw(width=40).splitlines())
    with pytest.raises(ValueError, match="width = 3 is not valid"):
        schedule.draw(width=3)
    result = pipeline.simulate(schedule, forward=1, backward_input=1, backward_weight=1)
    assert result.draw() == schedule.draw()
    events = json.loads(result.chrome_trace())["traceEvents"]
    first = next(event for event in events if event["ph"] == "X")
    assert first["name"] == "0F0" and first["dur"] == 1e6


def test_a_picture_needs_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = pipeline.generate("1f1b", stages=2, microbatches=3)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "smdp\[plots\]"'):
        schedule.draw(tmp_path / "a.png")


def test_a_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws the pictures")
    schedule = pipeline.generate("zb_v", stages=2, microbatches=3, virtual_stages=2)
    schedule.draw(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    # Dollars in a name are no mathematics.
    pipeline.Schedule.from_json(schedule.to_json().replace("zb_v", "$x^")).draw(tmp_path / "b.png")
    for wrong in ("a", "a.xyz"):
        with pytest.raises(
            ValueError, match=r"^\[smdp\] path = .* is not valid; allowed: file names ending in .*\.png"
        ):
            schedule.draw(tmp_path / wrong)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "b.png"]
