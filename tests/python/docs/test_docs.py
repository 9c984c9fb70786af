"""The pages name what the code has: exceptions, commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from smdp import _errors, cli, pipeline

DOCS = Path(__file__).resolve().parents[3] / "docs"
COMMANDS: dict[str, Any] = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]


def test_errors_page_names_every_exception() -> None:
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    names = [
        name
        for name, value in vars(_errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert "SmdpError" in names
    assert [name for name in names if f"`{name}`" not in page and f"smdp.{name}" not in page] == []


def test_pipeline_page_names_every_schedule_and_error() -> None:
    page = (DOCS / "pipeline.md").read_text(encoding="utf-8")
    errors = [name for name in pipeline.__all__ if name.endswith("Error") and name != "ScheduleError"]
    assert len(errors) == 10
    assert [name for name in [*pipeline.SCHEDULES, *errors] if f"`{name}`" not in page] == []
    pictures = (DOCS / "plots" / "schedules.py").read_text(encoding="utf-8")
    assert [name for name in pipeline.SCHEDULES if f'"{name}"' not in pictures] == ["auto"]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_cli_page_has_a_section_for_every_command(name: str) -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert f"## smdp {name}\n" in page
    section = page.split(f"## smdp {name}\n")[1].split("\n## ")[0]
    assert f"<!-- generated: command {name} -->\n" in section, "docs/generated lists all options"
