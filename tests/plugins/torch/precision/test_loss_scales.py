"""The loss scale after each step, given which steps have an overflow."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from smdp.torch.precision.loss_scales import DynamicLossScale, StaticLossScale, made_loss_scale

# Options, steps ("x": with an overflow) and the scale after each of them.
TRAJECTORIES: list[tuple[dict[str, Any], str, list[float]]] = [
    # It halves at once, and doubles after a window of clean steps, again and again.
    ({}, "xx..x......", [8, 4, 4, 4, 2, 2, 2, 4, 4, 4, 8]),
    # An overflow begins the window anew; so does growth.
    ({}, "..x..x...", [16, 16, 8, 8, 8, 4, 4, 4, 8]),
    ({"scale_factor": 4.0}, "x...", [4, 4, 4, 16]),
    ({"scale_window": 1}, ".x.", [32, 16, 32]),
    # It stays at the smallest one, which need not be a power of two.
    ({"min_scale": 3.0}, "xxxx...", [8, 4, 3, 3, 3, 3, 6]),
    # The first overflow is forgiven, further ones are not, until the scale has grown.
    ({"delayed_shift": 2}, "x.x.x", [16, 16, 8, 8, 4]),
    ({"delayed_shift": 2}, "x...x.x", [16, 16, 16, 32, 32, 32, 16]),
    ({"delayed_shift": 3}, "xxxx", [16, 16, 8, 4]),
    # Every clean step forgives again: only overflows in a row count.
    ({"delayed_shift": 2, "consecutive_hysteresis": True}, "x.x.xxx", [16, 16, 16, 16, 16, 8, 4]),
    ({"delayed_shift": 3, "consecutive_hysteresis": True}, "xx.xxx.", [16, 16, 16, 16, 16, 8, 8]),
]


@pytest.mark.parametrize(("options", "steps", "expected"), TRAJECTORIES)
def test_trajectory(options: dict[str, Any], steps: str, expected: list[float]) -> None:
    scale = DynamicLossScale(**{"init_scale": 16.0, "scale_window": 3, **options})
    found = []
    for number, step in enumerate(steps):
        if number == len(steps) // 2:  # a saved and loaded one continues alike
            state, scale = scale.state(), DynamicLossScale(**{"scale_window": 3, **options})
            scale.load(state)
        scale.update(has_overflow=step == "x")
        found.append(scale.value)
    assert found == expected


def test_defaults_are_those_of_smp() -> None:
    scale = DynamicLossScale()
    assert scale.value == 2.0**32
    for _ in range(999):
        scale.update(has_overflow=False)
    assert scale.value == 2.0**32
    scale.update(has_overflow=False)
    assert scale.value == 2.0**33


def test_overflows_at_the_smallest_scale_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    scale = DynamicLossScale(init_scale=1.0)
    with caplog.at_level(logging.WARNING):
        scale.update(has_overflow=True)
    assert "overflow at the smallest loss scale, 1.0" in caplog.text


def test_what_an_argument_asks_for() -> None:
    assert isinstance(made_loss_scale("dynamic", is_dynamic_by_default=False), DynamicLossScale)
    assert isinstance(made_loss_scale(None, is_dynamic_by_default=True), DynamicLossScale)
    one = made_loss_scale(None, is_dynamic_by_default=False)
    assert (type(one), one.value) == (StaticLossScale, 1.0)
    given = DynamicLossScale(8.0)
    made = made_loss_scale(given, is_dynamic_by_default=False)
    made.update(has_overflow=True)
    assert (made.value, given.value) == (4.0, 8.0)
    for wrong in ("static", 0, -1.0, float("inf"), float("nan"), True, [1]):
        with pytest.raises(ValueError, match=r"loss_scale is .*; allowed: "):
            made_loss_scale(wrong, is_dynamic_by_default=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init_scale": 0.0}, r"init_scale is 0\.0; allowed: a finite number above 0"),
        ({"min_scale": -1.0}, r"min_scale is -1\.0; allowed: a finite number above 0"),
        ({"scale_factor": 1.0}, r"scale_factor is 1\.0; allowed: a number above 1"),
        ({"scale_window": 0}, r"scale_window is 0; allowed: an integer of at least 1"),
        ({"delayed_shift": 1.5}, r"delayed_shift is 1\.5; allowed: an integer of at least 1"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DynamicLossScale(**options)
