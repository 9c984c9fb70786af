"""`smdp simulate ddp`: the cost model's predictions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from smdp import cli
from smdp._errors import ConfigError
from smdp.cli import gradients
from smdp.cli.simulate import parse_link


def simulate(*options: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(cli.app, ["simulate", "ddp", "--json", *options])
    assert done.exit_code == 0, done.output
    rows: list[dict[str, Any]] = json.loads(done.output)
    return rows


def test_one_rank_communicates_nothing() -> None:
    (row,) = simulate("--hosts", "1")
    assert row["exposed_seconds"] == 0
    assert row["efficiency"] == 1


def test_slow_links_approach_the_bound() -> None:
    model = ("--gradients", "transformer-6x512", "--forward-ms", "60", "--backward-ms", "120")
    rows = simulate("--hosts", "2,4,8", "--ranks-per-host", "2", "--link", "400Mbit", *model)
    payload = 0.956 * 400e6 / 8
    for row in rows:
        hosts = row["hosts"]
        bound = 2 * (hosts - 1) / hosts * 75_657_216 / payload
        assert bound + 0.08 < row["step_seconds"] < 1.03 * bound + 0.08


def test_half_the_bytes_take_half_the_time() -> None:
    options = ("--hosts", "4", "--link", "1Gbit")
    plain, half = (simulate(*options, "--compression", wire)[0] for wire in ("none", "bf16"))
    assert plain["exposed_seconds"] > 2 * half["exposed_seconds"] > 0


def test_efficiency_falls_with_hosts_and_a_ring_falls_faster() -> None:
    rows = simulate("--hosts", "1,8,64,512,4096", "--ranks-per-host", "8", "--link", "100Gbit")
    efficiencies = [row["efficiency"] for row in rows]
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert rows[-1]["efficiency"] > 3 * rows[-1]["ring_efficiency"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--hosts", "0"),
        ("--hosts", "two"),
        ("--link", "fast"),
        ("--link", "0Gbit"),
        ("--gradients", "bert-huge"),
        ("--gradients", "transformer-6x100000000000"),
        ("--gradients", "100000000x4"),
        ("--forward-ms", "inf"),
        ("--backward-ms", "inf"),
        ("--latency-us", "inf"),
        ("--gradients", "10x3"),
        ("--compression", "zip"),
    ],
)
def test_wrong_values_are_named(option: str, value: str) -> None:
    done = CliRunner().invoke(cli.app, ["simulate", "ddp", option, value])
    assert done.exit_code == 2
    assert value in done.output


def test_models_and_links() -> None:
    assert sum(map(sum, gradients.parse("", "bert-large"))) == pytest.approx(335e6, rel=0.01)
    assert sum(map(sum, gradients.parse("", "gpt2"))) == pytest.approx(124e6, rel=0.01)
    assert gradients.parse("", "1000x4K") == [[1024] * 100] * 10
    assert parse_link("", "100Gbit") == pytest.approx(11.95e9)
    with pytest.raises(ConfigError):
        parse_link("", "100")
