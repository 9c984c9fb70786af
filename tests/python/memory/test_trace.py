"""The file that a traced model comes in, and the memory model on it."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

import smdp
from smdp import memory
from smdp.partition import Tied, Trace, Unit


def some_trace() -> Trace:
    return Trace(
        name="tiny",
        microbatch_size=4,
        units=(
            Unit(name="wte", forward=1e-4, parameter_bytes=4000, activation_bytes=10, cut_bytes=640, stage=0),
            Unit(
                name="h.0",
                forward=2e-3,
                backward_input=2e-3,
                parameter_bytes=800,
                activation_bytes=5000,
                cut_bytes=640,
            ),
            Unit(name="h.1", backward_weight=2e-3, parameter_bytes=800, activation_bytes=5000, cut_bytes=640),
            Unit(name="head", parameter_bytes=4100, activation_bytes=9000, stage=1),
        ),
        tied=(Tied(name="wte.weight", bytes=4000, units=("wte", "head")),),
    )


def test_round_trip(tmp_path: Path) -> None:
    trace = some_trace()
    assert Trace.from_json(trace.to_json()) == trace
    trace.write(tmp_path / "trace.json")
    assert Trace.read(tmp_path / "trace.json") == trace
    values = json.loads(trace.to_json())
    assert values["smdp_trace"] == 1
    assert "stage" not in values["units"][1]


def test_memory_of_a_trace() -> None:
    estimate = memory.estimate(some_trace(), pipeline=2, microbatches=4, microbatch_size=8, precision="fp32")
    first, last = estimate.stages
    assert (first.parameters, last.parameters) == (4800, 4900)
    assert first.activations == 2 * 2 * (10 + 5000), "two in flight, of twice the samples"
    assert last.activations == 2 * (5000 + 9000)
    whole = memory.estimate(some_trace(), precision="fp32", microbatch_size=4)
    assert whole.stages[0].parameters == 4000 + 1600 + 100, "tied weights count once"
    checkpointed = memory.estimate(some_trace(), microbatch_size=4, checkpointing="each")
    assert checkpointed.stages[0].activations == 3 * 640
    assert checkpointed.stages[0].transients == 9000
    with pytest.raises(ValueError, match=r"tensor = 2 is not valid; allowed: 1, with a trace"):
        memory.estimate(some_trace(), tensor=2)
    with pytest.raises(ValueError, match=r"checkpointing = 'selective' is not valid"):
        memory.estimate(some_trace(), checkpointing="selective")
    with pytest.raises(
        ValueError, match=r"pipeline x virtual_stages = 5 is not valid; allowed: at most the 4"
    ):
        memory.estimate(some_trace(), pipeline=5)


def change(path: list[Any], value: object) -> str:
    """Give the trace as JSON with one value changed."""
    values = json.loads(some_trace().to_json())
    at = values
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a trace must be JSON"),
        ("[" * 100_000, "too deeply"),
        ("3", "trace = 3 is not valid; allowed: an object"),
        ('{"smdp_trace": 1}', "trace lacks the field units"),
        (change(["smdp_trace"], 2), "smdp_trace = 2 is not valid; allowed: 1"),
        (change(["smdp_trace"], True), "smdp_trace = True is not valid; allowed: 1"),
        (change(["colour"], 2), "'colour' is not valid; allowed: the fields microbatch_size, name"),
        (change(["units"], []), "units = [] is not valid; allowed: at least one unit"),
        (change(["units"], {}), "units = {} is not valid; allowed: a list of objects"),
        (change(["units", 1], 5), "units[1] = 5 is not valid; allowed: an object"),
        (
            change(["units", 1, "time"], 5),
            "units[1] = 'time' is not valid; allowed: the fields activation_bytes",
        ),
        (
            change(["units", 1, "name"], "wte"),
            "units[1].name = 'wte' is not valid; allowed: a name that units[0]",
        ),
        (change(["units", 1, "name"], 7), "units[1].name = 7 is not valid"),
        (change(["units", 1, "forward"], -1), "units[1].forward = -1 is not valid; allowed: seconds, from 0"),
        (change(["units", 1, "forward"], float("nan")), "units[1].forward = nan is not valid"),
        (change(["units", 1, "backward_input"], float("inf")), "units[1].backward_input = inf is not valid"),
        (change(["units", 1, "backward_weight"], "1"), "units[1].backward_weight = '1' is not valid"),
        (change(["units", 1, "parameter_bytes"], 1.5), "units[1].parameter_bytes = 1.5 is not valid"),
        (
            change(["units", 1, "activation_bytes"], 2**70),
            "units[1].activation_bytes = 1180591620717411303424",
        ),
        (change(["units", 3, "cut_bytes"], 5), "units[3].cut_bytes = 5 is not valid; allowed: 0"),
        (change(["units", 2, "stage"], -1), "units[2].stage = -1 is not valid"),
        (
            change(["units", 0, "stage"], 2),
            "units[3].stage = 1 is not valid; allowed: 2 or more, because wte",
        ),
        (
            change(["tied", 0, "units"], ["wte"]),
            "tied[0].units = ('wte',) is not valid; allowed: two or more",
        ),
        (
            change(["tied", 0, "units"], ["wte", "x"]),
            "tied[0].units[1] = 'x' is not valid; allowed: the name of a unit",
        ),
        (change(["tied", 0, "units"], ["wte", "wte"]), "tied[0].units[1] = 'wte'"),
        (change(["tied", 0, "units"], [["wte"], []]), "tied[0].units[0] = ['wte'] is not valid"),
        (change(["tied", 0, "bytes"], 4001), "tied[0].bytes = 4001 is not valid; allowed: no more than"),
        (change(["tied", 0, "bytes"], None), "tied[0].bytes = None is not valid"),
        (change(["microbatch_size"], 0), "microbatch_size = 0 is not valid; allowed: an integer from 1"),
        (
            change(["parameter_dtype"], "int3"),
            "parameter_dtype = 'int3' is not valid; allowed: float64, float32",
        ),
        (change(["name"], ""), "name = '' is not valid; allowed: a string"),
    ],
)
def test_wrong_traces(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^\[smdp\] ") as caught:
        Trace.from_json(text)
    assert message in str(caught.value)
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(smdp.ConfigError, match=r"trace\.json") as from_file:
        Trace.read(path)
    assert message in str(from_file.value)


@pytest.mark.parametrize("text", [None, 1, [], {}])
def test_text_of_another_type(text: Any) -> None:
    with pytest.raises(ValueError, match=r"^\[smdp\] a trace must be JSON text, not "):
        Trace.from_json(text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"units": "abc"}, "units = 'abc' is not valid; allowed: a tuple of Unit objects"),
        ({"units": None}, "units = None"),
        ({"units": (Unit(name="a"), 1)}, "units[1] = 1 is not valid; allowed: a Unit object"),
        ({"units": ()}, "units = [] is not valid; allowed: at least one unit"),
        ({"units": (Unit(name="a"),), "tied": "abc"}, "tied = 'abc' is not valid; allowed: a tuple of Tied"),
        ({"units": (Unit(name="a"),), "tied": ({},)}, "tied[0] = {} is not valid; allowed: a Tied object"),
    ],
)
def test_fields_of_another_type(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^\[smdp\] trace: ") as caught:
        Trace(**fields)
    assert message in str(caught.value)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(smdp.ConfigError, match="cannot read"):
        Trace.read(tmp_path / "none.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(smdp.ConfigError, match="binary"):
        Trace.read(tmp_path / "binary")


NASTY = (None, True, 0, 1, -1, 2**31, 2**70, 1.5, float("nan"), "", "wte", "h.0", [], ["wte"], {}, [[]])


def test_no_text_crashes_the_reader() -> None:
    """SMDP_FUZZ_ROUNDS sets how many are tried."""
    rng = random.Random(os.environ.get("SMDP_FUZZ_SEED", "3"))
    good = some_trace().to_json()
    read = 0
    messages = []
    for _ in range(int(os.environ.get("SMDP_FUZZ_ROUNDS", "6000"))):
        if rng.random() < 0.5:
            values = json.loads(good)
            for _ in range(rng.randint(0, 2)):
                at: Any = rng.choice([values, *values.get("units", []), *values.get("tied", [])])
                if isinstance(at, dict):
                    at[rng.choice([*at, "stage", "x"])] = rng.choice(NASTY)
                if not isinstance(values.get("units"), list) or not isinstance(values.get("tied"), list):
                    break
            text = json.dumps(values)
        else:
            letters = list(good)
            for _ in range(rng.randint(0, 3)):
                letters[rng.randrange(len(letters))] = rng.choice('{}[],:"0-9eE.+ntf\\\x00\ud800')
            text = "".join(letters)
        try:
            trace = Trace.from_json(text)
            assert memory.estimate(trace, pipeline=2, checkpointing="group_2").peak > 0
            assert Trace.from_json(trace.to_json()) == trace
            read += 1
        except ValueError as error:
            messages.append(str(error))
    assert read > 500 and len(messages) > 1000
    assert [message for message in messages if not message.startswith("[smdp] ")] == []


def test_a_number_of_many_digits_is_named() -> None:
    text = json.dumps({"smdp_trace": 1, "units": [{"name": "a", "parameter_bytes": 7}]})
    with pytest.raises(
        ValueError, match=r"units\[0\]\.parameter_bytes = inf is not valid; allowed: an integer"
    ):
        Trace.from_json(text.replace("7", "7" * 5000))
    with pytest.raises(ValueError, match=r"parameter_bytes = an int of 16610 bits is not valid"):
        Trace(units=(Unit(name="a", parameter_bytes=10**5000),))


def test_what_is_no_path_is_told() -> None:
    with pytest.raises(TypeError, match=r"^\[smdp\] path = None is not valid"):
        Trace.read(None)  # type: ignore[arg-type]
