"""The measured figures in docs/benchmarks/, and how pages write them.

Each file of a topic has records. A record is a table of figures and where it comes from: the command, the
machine, the date, the versions and the peer. A figure is a number, a list with one number per run, a range
(`{"min": 1, "max": 2}`), a median with its range (`{"median": 1.5, "min": 1, "max": 2}`), or null.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
TOPICS = (
    "inside_a_host",
    "between_hosts",
    "pipelines",
    "tensor_parallelism",
    "tensorflow",
    "trainer",
    "planning",
    "plan_accuracy",
    "tried",
)
TIMES = "\u00d7"  # the sign of multiplication
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_WORDS = ("a ", "the ", "loops ")  # how a command begins that is told in words
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def machines() -> dict[str, dict[str, str]]:
    """Returns what is known of each machine, by its name in records."""
    return dict(json.loads((FOLDER / "machines.json").read_text(encoding="utf-8")))


def summary() -> list[dict[str, str]]:
    """Returns the rows of the summary, each with the record and the columns that it quotes."""
    return list(json.loads((FOLDER / "summary.json").read_text(encoding="utf-8")))


def topic(name: str) -> dict[str, Any]:
    """Returns a topic: its title and its records."""
    return dict(json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))


def record(path: str) -> dict[str, Any]:
    """Returns the record of a path, "topic/id".

    Raises:
        LookupError: The topic has no such record.
    """
    name, _, identity = path.partition("/")
    for one in topic(name)["records"]:
        if one["id"] == identity:
            return dict(one)
    raise LookupError(f"docs/benchmarks/{name}.json has no record {identity!r}")


def column(path: str, name: str) -> dict[str, float]:
    """Returns the figures of a column by the name of their row, a single number each; times in seconds."""
    found = record(path)
    return {
        row[0]: single(row[at], unit)
        for at, unit in [_column(found, name)]
        for row in found["rows"]
        if row[at]
    }


def figure(path: str, row: str, name: str) -> tuple[Any, str]:
    """Returns a figure as the record has it, and its unit."""
    found = record(path)
    at, unit = _column(found, name)
    return next(one[at] for one in found["rows"] if one[0] == row), unit


def single(value: Any, unit: str = "") -> float:
    """Returns one number for a figure: the median, the middle of a range or of the runs; times in seconds."""
    if isinstance(value, list):
        ordered = sorted(single(one) for one in value)
        value = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    elif isinstance(value, dict):
        value = value.get("median", (value["min"] + value["max"]) / 2)
    return float(value) * _SECONDS.get(unit, 1.0)


def text(value: Any, unit: str = "", digits: int = 6) -> str:
    """Writes a figure with its unit, rounded to so many digits."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(text(one, unit, digits) for one in value)
    if not isinstance(value, dict):
        return _with_unit([value], unit, digits)
    span = _with_unit([value["min"], value["max"]], unit, digits)
    return f"{_with_unit([value['median']], unit, digits)} ({span})" if "median" in value else span


def table(found: dict[str, Any]) -> str:
    """Writes the table of a record in Markdown."""
    units = [one.get("unit", "") for one in found["columns"]]
    rows = [[one["name"] for one in found["columns"]], ["---"] + ["---:"] * (len(units) - 1)]
    rows += [[text(value, unit) for value, unit in zip(row, units)] for row in found["rows"]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def source(found: dict[str, Any]) -> str:
    """Writes where the figures of a record come from, in Markdown."""
    commands = ", ".join(one if one.startswith(_WORDS) else f"`{one}`" for one in found["command"])
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"{machines()[found['machine']]['name']}, {found['date']}; {versions}. {commands}."


def _column(found: dict[str, Any], name: str) -> tuple[int, str]:
    names = [one["name"] for one in found["columns"]]
    if name not in names:
        raise LookupError(f"the record {found['id']!r} has no column {name!r}; it has {names}")
    return names.index(name), found["columns"][names.index(name)].get("unit", "")


def _with_unit(values: list[float], unit: str, digits: int) -> str:
    if unit in _SECONDS:
        seconds = [value * _SECONDS[unit] for value in values]
        scale, unit = next((one for one in _TIMES if max(seconds) >= one[0] * 0.9999), _TIMES[-1])
        values = [value / scale for value in seconds]
    numbers = " to ".join(f"{value:.{digits}g}" for value in values)
    return numbers + {"x": TIMES, "": ""}.get(unit, f"\u00a0{unit}")  # on one line
