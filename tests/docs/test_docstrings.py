"""The interactive examples of all docstrings give what they show, where what they need is installed."""

from __future__ import annotations

import doctest
import importlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pages import ROOT

FRAMEWORKS = ("torch", "tensorflow", "transformers", "accelerate", "lightning", "compat")


def modules() -> list[object]:
    """Find the modules of the source tree that have examples, under their names in the wheel."""
    found: list[object] = []
    for tree in (ROOT / "core" / "python", *sorted(ROOT.glob("plugins/*/python"))):
        for file in sorted(tree.rglob("*.py")):
            if ">>> " not in file.read_text(encoding="utf-8"):
                continue
            parts = file.relative_to(tree).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            needs = len(parts) > 1 and parts[1] in FRAMEWORKS
            found.append(pytest.param(name, id=name, marks=[pytest.mark.framework] if needs else []))
    return found


@pytest.mark.parametrize("name", modules())
def test_examples(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        pytest.skip(str(error))
    # `import smdp.torch` in an example must not hide the modules that the module itself has.
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_examples_are_found() -> None:
    assert len(modules()) >= 10
