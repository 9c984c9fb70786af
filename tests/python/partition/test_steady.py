"""Cuts by times that are disturbed."""

from __future__ import annotations

import dataclasses
import functools
import random

import pytest

from smdp.partition import Trace, Unit, partition
from smdp.partition.steady import Cut, Steady, Weights, steady_partition

MIB = 2**20
# Seconds, bytes of parameters and bytes of activations of each kind of unit.
KINDS = {
    "embedding": (0.002, 40 * MIB, MIB),
    "block": (0.010, 12 * MIB, 4 * MIB),
    "head": (0.048, 40 * MIB, 8 * MIB),
}
EQUAL = ("block",) * 12
UNEVEN = ("embedding", *("block",) * 10, "head")


def weights(names: tuple[str, ...], errors: dict[str, float] | None = None, spread: float = 0.15) -> Weights:
    """Returns weights whose times are wrong by these factors."""
    units, parts = [], []
    for place, kind in enumerate(names):
        seconds, parameter_bytes, activation_bytes = KINDS[kind]
        seconds *= (errors or {}).get(kind, 1.0)
        units.append(
            Unit(
                name=f"{place}",
                forward=seconds / 3,
                backward_input=seconds / 3,
                backward_weight=seconds / 3,
                parameter_bytes=parameter_bytes,
                activation_bytes=activation_bytes,
            )
        )
        parts.append({kind: seconds})
    return Weights(Trace(units=tuple(units)), tuple(parts), dict.fromkeys(KINDS, spread))


def steady(measured: Weights, balanced: Weights, **options: int) -> Steady:
    return steady_partition(
        measured, balanced, functools.partial(partition, ranks=2, microbatches=4, **options)
    )


def sizes(found: Steady) -> list[int]:
    return [len(stage.units) for stage in found.partition.stages]


@pytest.mark.parametrize("names", [EQUAL, UNEVEN])
def test_what_disturbs_times_by_less_than_their_spread_changes_nothing(names: tuple[str, ...]) -> None:
    draw = random.Random(1)
    balanced = weights(names)
    expected = sizes(steady(balanced, balanced))
    alone = set()
    for _ in range(50):
        errors = {kind: 1 + draw.uniform(0, 0.15) for kind in KINDS}
        measured = weights(names, errors)
        assert sizes(steady(measured, balanced)) == expected
        alone.add(len(partition(measured.trace, ranks=2, microbatches=4).stages[0].units))
    assert names == EQUAL or len(alone) > 1  # the fastest cut by these times is not always the same


def test_equal_units_are_cut_equally_whatever_their_time() -> None:
    for ranks, expected in ((2, [6, 6]), (3, [4, 4, 4]), (4, [3, 3, 3, 3])):
        cut = functools.partial(partition, ranks=ranks, microbatches=8)
        found = steady_partition(weights(EQUAL, {"block": 7.0}, spread=1.0), weights(EQUAL), cut)
        assert sizes(found) == expected and found.reason == ""


def test_a_difference_above_the_spread_counts() -> None:
    found = steady(weights(UNEVEN, {"head": 2.5}), weights(UNEVEN))
    fastest = partition(weights(UNEVEN, {"head": 2.5}).trace, ranks=2, microbatches=4)
    assert (
        sizes(found)
        == [len(stage.units) for stage in fastest.stages]
        != sizes(steady(*[weights(UNEVEN)] * 2))
    )
    assert found.reason == ""
    unsure = steady(weights(UNEVEN, {"head": 2.5}, spread=1.0), weights(UNEVEN))
    assert sizes(unsure) == sizes(steady(*[weights(UNEVEN)] * 2))
    assert unsure.reason.startswith("Balanced by operations: by measured times, another cut would save")


def test_less_memory_wins_where_times_are_as_good_as_equal() -> None:
    # 50 light units and 50 that take about as long and hold far more.
    kinds = {"light": (0.0100, MIB), "full": (0.0102, 40 * MIB)}
    names = ("light",) * 50 + ("full",) * 50
    units = [
        Unit(name=f"{place}", forward=kinds[kind][0], parameter_bytes=kinds[kind][1])
        for place, kind in enumerate(names)
    ]
    both = Weights(Trace(units=tuple(units)), tuple({kind: kinds[kind][0]} for kind in names), {})
    cut = functools.partial(partition, ranks=2, microbatches=64)
    fastest = cut(both.trace)
    found = steady_partition(both, both, cut).partition
    assert [len(stage.units) for stage in fastest.stages] == [50, 50]
    assert [len(stage.units) for stage in found.stages] == [52, 48]
    assert max(found.peak_bytes) < max(fastest.peak_bytes) and found.step < 1.02 * fastest.step


def test_pins_stay() -> None:
    measured, balanced = (
        dataclasses.replace(each, trace=Cut((0,) * 3 + (1,) * 9, (0, 1)).pinned(each.trace))
        for each in (weights(UNEVEN, {"head": 3.0}), weights(UNEVEN))
    )
    assert sizes(steady(measured, balanced)) == [3, 9]
