"""The page "Will it fit?": its commands print what it shows, its tables name every field."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from smdp import memory
from smdp.memory.families import FAMILIES
from smdp.partition import Tied, Trace, Unit

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "memory.md").read_text(encoding="utf-8")


def test_example_prints_what_the_page_shows() -> None:
    example = DOCS / "examples" / "will_it_fit.py"
    done = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, timeout=60, check=True
    )
    assert f"$ python docs/examples/will_it_fit.py\n{done.stdout}```" in PAGE


def test_snippet_of_the_largest_configuration_runs() -> None:
    snippet = next(text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "n_layer" in text)
    estimate = eval(f"({snippet.strip()})", {"memory": memory})
    assert estimate.fits(40e9)


def test_trace_of_the_page_is_one(tmp_path: Path) -> None:
    text = next(text for text in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
    (tmp_path / "trace.json").write_text(text, encoding="utf-8")
    trace = Trace.read(tmp_path / "trace.json")
    assert json.loads(text)["units"][1]["name"] == trace.units[1].name
    assert memory.estimate(trace, microbatch_size=8, pipeline=2, microbatches=4).peak > 0


def test_page_names_every_field() -> None:
    settings = [name for name in dir(memory.Setting) if not name.startswith("_")]
    shapes = [name for kind in (memory.Layers, memory.Architecture) for name in dir(kind) if name[0] != "_"]
    kinds = [name for name in dir(memory.StageMemory) if not name.startswith("_")]
    of_traces = [field.name for kind in (Trace, Unit, Tied) for field in fields(kind)]
    assert len(settings) == 22
    names = {*settings, *shapes, *kinds, *of_traces, *FAMILIES, *memory.KINDS}
    assert sorted(name for name in names if f"`{name}`" not in PAGE) == []
