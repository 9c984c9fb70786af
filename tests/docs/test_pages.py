"""The code of every page runs as it stands there, on real ranks, where what it needs is installed."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from smdp.cli.rank_environments import rank_environments

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "processes"))
from pages import PAGES, SETUPS, blocks, setup_of
from spawn import run_ranks, template_of

# What is imported once for all pages of a framework, as far as it is installed.
IMPORTS = {"tensorflow": ["tensorflow"], "torch": ["torch._dynamo", "transformers.trainer", "lightning"]}
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
    names = IMPORTS[setup.needs[0]] if setup.needs else []
    imports = tuple(name for name in names if importlib.util.find_spec(name.partition(".")[0]))
    templates = [template_of(imports, rank) for rank in range(setup.ranks if imports else 0)]
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    ranks = rank_environments(variables, setup.ranks) if setup.ranks > 1 else [variables]
    words = [str(Path(__file__).with_name("run_page.py")), str(page)]
    expected = [0] * setup.ranks
    codes, outputs = run_ranks(words, ranks, expected, templates=templates, timeout=280, folder=tmp_path)
    assert codes == expected, "\n".join(outputs)


def test_every_setup_has_its_page() -> None:
    assert {path.stem for path in SETUPS.glob("*.py")} <= {page.stem for page in WITH_CODE}
