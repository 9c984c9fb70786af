"""Measured figures say where they come from, pages show them all, and the README's picture is up to date."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pages import DOCS

sys.path.insert(0, str(DOCS))
sys.path.insert(0, str(DOCS / "plots"))
import speed
from directives import benchmark_data as data

RECORDS = {f"{name}/{one['id']}": one for name in data.TOPICS for one in data.topic(name)["records"]}
UNITS = {"us", "ms", "s", "x", "%", "GB/s", "MB"}


def test_every_file_is_a_topic() -> None:
    files = {path.stem for path in data.FOLDER.glob("*.json")}
    assert files == {*data.TOPICS, "machines", "summary"}


@pytest.mark.parametrize("path", RECORDS)
def test_record_says_where_it_comes_from(path: str) -> None:
    record = RECORDS[path]
    assert record["what"]
    assert record["command"] and all(record["command"])
    assert record["machine"] in data.machines()
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", record["date"])
    assert "smdp" in record["versions"]
    assert {column.get("unit", "x") for column in record["columns"]} <= UNITS
    for row in record["rows"]:
        assert len(row) == len(record["columns"])
        assert isinstance(row[0], str) and any(value is not None for value in row[1:])
        assert all(map(is_figure, row[1:])), row


def is_figure(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(is_figure(one) and not isinstance(one, list) for one in value)
    if isinstance(value, dict):
        return set(value) in ({"min", "max"}, {"median", "min", "max"}) and value["min"] <= value["max"]
    return value is None or isinstance(value, int | float | str)


def test_ids_are_unique() -> None:
    ids = [path.partition("/")[2] for path in RECORDS]
    assert len(ids) == len(set(ids))


def test_pages_show_every_topic() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    assert [name for name in data.TOPICS if f"{{benchmark-records}} {name}\n" not in pages] == []
    for path in re.findall(r"\{benchmark\} (\S+)", pages):
        assert path in RECORDS


def test_built_pages_show_every_record() -> None:
    built = [DOCS / "_build" / "html" / f"{name}.html" for name in ("benchmarks_data", "benchmarks_notes")]
    if not all(page.exists() for page in built):
        pytest.skip("the pages are not built: tox -e docs")
    html = "".join(page.read_text(encoding="utf-8") for page in built)
    missing = [path for path, one in RECORDS.items() if f'id="{one["id"].replace("_", "-")}"' not in html]
    assert missing == []


def test_summary_quotes_records() -> None:
    for row in data.summary():
        value, unit = data.figure(row["record"], row["row"], row["smdp"])
        assert data.single(value, unit) > 0


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (4.7, "us", "4.7\u00a0µs"),
        (19600, "us", "19.6\u00a0ms"),
        (0.227, "s", "227\u00a0ms"),
        ([1.7, 2.2], "ms", "1.7\u00a0ms, 2.2\u00a0ms"),
        ({"min": 2.4, "max": 2.6}, "ms", "2.4 to 2.6\u00a0ms"),
        ({"median": 8.6, "min": 7.7, "max": 9.4}, "x", "8.6\u00d7 (7.7 to 9.4\u00d7)"),
        (98.24, "%", "98.24\u00a0%"),
        (None, "ms", ""),
    ],
)
def test_figures_are_written_with_their_unit(value: Any, unit: str, text: str) -> None:
    assert data.text(value, unit) == text


@pytest.mark.parametrize("name", speed.COLORS)
def test_picture_of_the_readme_is_as_new_as_its_figures(name: str) -> None:
    kept = (DOCS / "images" / f"{name}.svg").read_text(encoding="utf-8")
    assert kept == speed.picture(name), "run python docs/plots/speed.py"
