"""`smdp schedule show`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from smdp import cli, pipeline


def show(*options: str) -> str:
    done = CliRunner().invoke(cli.app, ["schedule", "show", *options])
    assert done.exit_code == 0, done.output
    return str(done.output)


def test_1f1b_as_in_the_documentation() -> None:
    lines = show("1f1b", "--stages", "4", "--microbatches", "8").splitlines()
    assert lines[0] == "rank 0 0123......aa4bb5cc6dd7ee.ff.gg.hh"
    assert lines[3] == "rank 3 ...0aa1bb2cc3dd4ee5ff6gg7hh......"
    assert "makespan 33, bubble 27.3 %, at most 4 microbatches" in lines[4]


@pytest.mark.parametrize("name", pipeline.SCHEDULES)
def test_every_schedule_can_be_shown(name: str) -> None:
    figures = json.loads(show(name, "--json"))
    assert figures["schedule"] in pipeline.SCHEDULES
    assert 0 <= figures["bubble"] < 0.4


def test_files_are_written(tmp_path: Path) -> None:
    for ending in (".csv", ".json"):
        show("zb_v", "--output", str(tmp_path / f"schedule{ending}"))
    from_csv = pipeline.Schedule.from_csv((tmp_path / "schedule.csv").read_text())
    assert pipeline.Schedule.from_json((tmp_path / "schedule.json").read_text()).rows == from_csv.rows
    show("1f1b", "--trace", str(tmp_path / "trace.json"))
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["2f2b"], "there is no schedule '2f2b'; allowed: gpipe"),
        (["1f1b", "--stages", "0"], "stages = 0 is not valid"),
        (["1f1b", "--virtual-stages", "2"], "interleaved_1f1b supports other numbers"),
        (["1f1b", "--forward", "nan"], "forward[0] = nan is not valid"),
        (["1f1b", "--output", "a.gif"], "names ending in .csv"),
        (["1f1b", "--output", "/nonexistent/a.csv"], "No such file"),
        (["dualpipe_v", "--microbatches", "7"], "allowed: 8 or more"),
    ],
)
def test_wrong_options_are_told(options: list[str], message: str) -> None:
    done = CliRunner().invoke(cli.app, ["schedule", "show", *options])
    assert done.exit_code == 2
    assert message in done.output and "Traceback" not in done.output


def test_a_picture_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = CliRunner().invoke(cli.app, ["schedule", "show", "1f1b", "-o", str(tmp_path / "a.png")])
    assert done.exit_code == 2
    assert done.stdout == show("1f1b")
    assert done.stderr.startswith("smdp schedule: ") and 'pip install "smdp[plots]"' in done.stderr


def test_list_names_every_schedule() -> None:
    done = CliRunner().invoke(cli.app, ["schedule", "list"])
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(pipeline.SCHEDULES)


def test_a_wrong_width_writes_nothing(tmp_path: Path) -> None:
    output = tmp_path / "a.csv"
    done = CliRunner().invoke(cli.app, ["schedule", "show", "1f1b", "--width", "5", "--output", str(output)])
    assert done.exit_code == 2 and "width = 5 is not valid" in done.output
    assert not output.exists()


def test_active_microbatches() -> None:
    few = json.loads(show("smp_interleaved", "--active-microbatches", "2", "--json"))
    many = json.loads(show("smp_interleaved", "--json"))
    assert max(few["peak_activations"]) == 2 < max(many["peak_activations"])
