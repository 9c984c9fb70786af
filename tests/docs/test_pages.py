"""The code of every page runs as it stands there, on real ranks, where what it needs is installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pages import PAGES, SETUPS, blocks, setup_of

WITH_CODE = [page for page in PAGES if any(block.reason is None for block in blocks(page, "python", "pycon"))]


def parameters() -> list[object]:
    framework = pytest.mark.framework
    return [
        pytest.param(page, id=page.stem, marks=[framework] if setup_of(page).needs else [])
        for page in WITH_CODE
    ]


@pytest.mark.timeout(300)  # frameworks take half a minute to import where cores are scarce
@pytest.mark.parametrize("page", parameters())
def test_code_runs(page: Path, tmp_path: Path) -> None:
    setup = setup_of(page)
    missing = [name for name in setup.needs if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    command = [sys.executable, str(Path(__file__).with_name("run_page.py")), str(page)]
    if setup.ranks > 1:
        command = [sys.executable, "-m", "smdp", "run", "-n", str(setup.ranks), *command[1:]]
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout


def test_every_setup_has_its_page() -> None:
    assert {path.stem for path in SETUPS.glob("*.py")} <= {page.stem for page in WITH_CODE}
