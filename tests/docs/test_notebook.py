"""The quickstart notebook runs, and its committed outputs are whole and small."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pages import DOCS

NOTEBOOK = DOCS / "examples" / "quickstart.ipynb"
NEEDS = ("nbclient", "ipykernel", "cloudpickle", "matplotlib", "sklearn", "torch")


def outputs(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [output for cell in cells if cell["cell_type"] == "code" for output in cell["outputs"]]


def check(path: Path) -> None:
    found = outputs(path)
    text = "".join("".join(one.get("text", ())) for one in found)
    assert [one["output_type"] for one in found].count("error") == 0
    assert "[rank 0] Hello from rank 0 of 2\n" in text
    assert "[rank 1] Hello from rank 1 of 2\n" in text
    assert "caught: no such layer\n" in text
    assert "rank 1 of 2:\nTraceback" in text
    assert float(text.partition("accuracy ")[2].split()[0]) > 90
    assert sum("image/svg+xml" in one.get("data", ()) for one in found) == 1


def test_committed_outputs_are_whole() -> None:
    check(NOTEBOOK)
    assert NOTEBOOK.stat().st_size < 100_000


@pytest.mark.framework
@pytest.mark.timeout(300)
def test_notebook_runs(tmp_path: Path) -> None:
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    command = [sys.executable, str(Path(__file__).with_name("run_notebook.py")), str(NOTEBOOK)]
    done = subprocess.run(
        [*command, str(tmp_path / "done.ipynb")], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    check(tmp_path / "done.ipynb")
