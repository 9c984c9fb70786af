"""`smdp.partition` from Python: a trace in, stages out, as text too."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from smdp.memory import estimate
from smdp.partition import Tied, Trace, Unit, assignments, partition

MIB = 2**20


def language_model(layers: int = 12, **change: Any) -> Trace:
    body = [
        Unit(
            name=f"transformer.h.{i}",
            forward=1e-3,
            backward_input=1e-3,
            backward_weight=1e-3,
            parameter_bytes=28 * MIB,
            activation_bytes=40 * MIB,
            cut_bytes=3 * MIB,
        )
        for i in range(layers)
    ]
    first = Unit(name="transformer.wte", forward=1e-4, parameter_bytes=150 * MIB, cut_bytes=3 * MIB)
    head = Unit(
        name="lm_head",
        forward=3e-3,
        backward_input=3e-3,
        backward_weight=3e-3,
        parameter_bytes=150 * MIB,
        activation_bytes=100 * MIB,
    )
    weight = Tied(name="transformer.wte.weight", bytes=150 * MIB, units=("lm_head", "transformer.wte"))
    return dataclasses.replace(Trace(units=(first, *body, head), tied=(weight,)), **change)


def test_a_heavy_head_takes_layers_off_the_last_stage() -> None:
    trace = language_model()
    found = partition(trace, ranks=4, microbatches=8, bandwidth=10e9)
    sizes = [len(stage.units) for stage in found.stages]
    assert sum(sizes) == 14 and sizes[-1] < sizes[1]
    assert found.bottleneck == max(stage.seconds for stage in found.stages)
    work = 8 * sum(stage.seconds for stage in found.stages)
    assert found.bubble == pytest.approx(1 - work / (4 * (found.step - 150 * MIB / 10e9)), abs=1e-6)
    even = partition(pinned(trace, [4, 7, 11, 14]), ranks=4, microbatches=8, bandwidth=10e9)
    assert found.step < even.step


def pinned(trace: Trace, ends: list[int]) -> Trace:
    stages = [next(k for k, end in enumerate(ends) if i < end) for i in range(len(trace.units))]
    units = [dataclasses.replace(unit, stage=k) for unit, k in zip(trace.units, stages, strict=True)]
    return dataclasses.replace(trace, units=tuple(units))


def test_text() -> None:
    trace = language_model()
    text = assignments(trace, partition(trace, ranks=2, microbatches=4))
    lines = text.splitlines()
    assert lines[0] == "Partition assignments:"
    assert lines[1].startswith("stage 0 on rank 0: transformer.wte to transformer.h.")
    assert lines[2].startswith("stage 1 on rank 1: transformer.h.")
    assert "predicted step" in lines[3] and "bubble" in lines[3]
    assert "is the slowest" in lines[4]


def test_smp() -> None:
    trace = language_model()
    found = partition(trace, ranks=4, algorithm="smp")
    assert found.step == 0
    assert sorted(unit for stage in found.stages for unit in stage.units) == list(range(14))
    # Tied units are one node: both on one rank, though a chain lies between.
    assert next(stage for stage in found.stages if 0 in stage.units).units[-1] == 13
    assert "transformer.wte, lm_head" in assignments(trace, found).replace(" to transformer.h.2", "")


def test_memory_is_that_of_the_memory_model() -> None:
    """States and activations of a cut are what smdp.memory says of the same stages."""
    trace = language_model()
    found = partition(trace, ranks=4, microbatches=8, precision="bf16", sharding="zero1", sharding_degree=4)
    sizes = [len(stage.units) for stage in found.stages]
    model = estimate(
        trace,
        pipeline=4,
        microbatches=8,
        precision="bf16",
        sharding="zero1",
        data=4,
        stage_sizes=sizes,
    )
    for mine, theirs in zip(found.stages, model.stages, strict=True):
        states = theirs.parameters + theirs.gradients + theirs.optimizer
        assert mine.memory_bytes == pytest.approx(states + theirs.activations)


def test_the_cap_that_the_error_names_does() -> None:
    trace = language_model()
    with pytest.raises(ValueError, match=r"memory_cap = 1000000 bytes is too small for 2 stages") as caught:
        partition(trace, ranks=2, microbatches=4, memory_cap=1e6)
    needed = float(str(caught.value).split("needs ")[1].split(" bytes")[0])
    found = partition(trace, ranks=2, microbatches=4, memory_cap=needed)
    assert max(found.peak_bytes) <= needed


def test_wrong_input() -> None:
    trace = language_model()
    with pytest.raises(ValueError, match="ranks = 0 is not valid"):
        partition(trace, ranks=0)
    with pytest.raises(ValueError, match="ranks x virtual_stages = 15 x 1 is not valid; allowed: at most 14"):
        partition(trace, ranks=15)
    with pytest.raises(ValueError, match="there is no schedule 'fast'; allowed: gpipe, "):
        partition(trace, ranks=2, schedule="fast")
    with pytest.raises(ValueError, match="precision = 'fp8' is not valid"):
        partition(trace, ranks=2, precision="fp8")
    with pytest.raises(ValueError, match="bandwidth = nan"):
        partition(trace, ranks=2, bandwidth=float("nan"))
    with pytest.raises(ValueError, match="latency = -1e-09 is not valid"):
        partition(trace, ranks=2, latency=-1e-9)
    with pytest.raises(ValueError, match="algorithm = 'x"):
        partition(trace, ranks=2, algorithm="x" + "\u00e9" * 80)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("ranks", 2.5, "an integer"),
        ("ranks", "4", "an integer"),
        ("ranks", 10**30, "an integer below"),
        ("microbatches", None, "an integer"),
        ("schedule", None, "a str"),
        ("algorithm", "\ud800", "a str that can be encoded"),
        ("precision", 16, "a str"),
        ("memory_cap", "40GB", "a number"),
        ("bandwidth", None, "a number"),
        ("is_tied_together", 1, "True, False"),
    ],
)
def test_values_of_another_type_are_named(name: str, value: object, allowed: str) -> None:
    options: dict[str, Any] = {"ranks": 2, name: value}
    with pytest.raises((TypeError, ValueError)) as caught:
        partition(language_model(), **options)
    assert str(caught.value).startswith(f"[smdp] {name} = ") and f"allowed: {allowed}" in str(caught.value)


SCHEDULES = ["1f1b", "zb_v", "auto", "v_min", "interleaved_1f1b", "forward_only", ""]


def test_no_input_crashes() -> None:
    pick = random.Random(0)
    odd = [0, -1, 1, 7, 1e300, float("nan"), float("inf"), 2**31 - 1]
    for _ in range(2000):
        options: dict[str, Any] = {
            "ranks": pick.choice([1, 2, 3, 5]),
            "virtual_stages": pick.choice([1, 1, 2, 3]),
            "microbatches": pick.choice([1, 2, 4, 9]),
            "schedule": pick.choice(SCHEDULES),
            "algorithm": pick.choice(["pipeline", "bottleneck", "smp", "x"]),
        }
        name = pick.choice(["memory_cap", "latency", "bandwidth", "memory_weight"])
        options[name] = float(pick.choice(odd))
        name = pick.choice(["ranks", "virtual_stages", "microbatches", "active_microbatches"])
        options[name] = pick.choice([0, -1, 2, 3, 17, 2**31 - 1])
        refusal = ""
        found = None
        try:
            found = partition(language_model(4), **options)
        except ValueError as error:
            refusal = str(error)
        if found is None:
            assert refusal.startswith("[smdp] ")
        else:
            assert sorted(unit for stage in found.stages for unit in stage.units) == list(range(6))
