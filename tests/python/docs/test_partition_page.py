"""The page "How smdp splits a model": its example prints what it shows, its call runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from smdp.partition import Trace, Unit

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "partition.md").read_text(encoding="utf-8")


def test_example_prints_what_the_page_shows() -> None:
    example = DOCS / "examples" / "split_a_model.py"
    done = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, timeout=60, check=True
    )
    assert f"$ python docs/examples/split_a_model.py\n{done.stdout}```" in PAGE


def test_snippet_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Trace(units=tuple(Unit(name=f"h.{i}", forward=1e-3) for i in range(8))).write("trace.json")
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0], {})
