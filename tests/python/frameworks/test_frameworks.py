"""A missing or too old framework is one line with its cure; tests/install shows it with real old versions."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from smdp import _frameworks

PLUGINS = {
    "smdp.torch": ("torch", "PyTorch", "torch"),
    "smdp.tensorflow": ("tensorflow", "TensorFlow", "tensorflow"),
    "smdp.transformers": ("transformers", "transformers", "transformers"),
    "smdp.accelerate": ("accelerate", "Accelerate", "transformers"),
    "smdp.lightning": ("lightning", "Lightning", "lightning"),
}


@pytest.mark.parametrize("plugin", PLUGINS)
def test_missing_framework_is_one_line_with_the_cure(plugin: str) -> None:
    package, title, extra = PLUGINS[plugin]
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed here")
    done = subprocess.run([sys.executable, "-c", f"import {plugin}"], capture_output=True, text=True)
    assert done.returncode == 1
    line = (
        f'ImportError: [smdp] {plugin} requires {title}, which is not installed: pip install "smdp[{extra}]"'
    )
    assert done.stderr.splitlines()[-1] == line
    assert done.stderr.count("Traceback") == 1, "one error, not one that led to another"


def test_too_old_framework_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy

    newest = {"numpy": _frameworks.Framework("NumPy", "99.1", "torch")}
    monkeypatch.setattr(_frameworks, "FRAMEWORKS", newest)
    with pytest.raises(ImportError) as caught:
        _frameworks.require("smdp.plugin", "numpy")
    assert str(caught.value) == (
        f"[smdp] smdp.plugin requires NumPy 99.1 or newer, but {numpy.__version__} is installed:"
        ' pip install "smdp[torch]"'
    )


def test_error_inside_a_framework_stays_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A framework whose own dependency is missing must not be called missing itself.
    (tmp_path / "broken_framework.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        _frameworks, "FRAMEWORKS", {"broken_framework": _frameworks.Framework("Broken", "1.0", "torch")}
    )
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        _frameworks.require("smdp.plugin", "broken_framework")


@pytest.mark.parametrize("package", _frameworks.FRAMEWORKS)
def test_oldest_version_is_the_one_that_the_extra_asks_for(package: str) -> None:
    framework = _frameworks.FRAMEWORKS[package]
    requirements = metadata.requires("smdp") or []
    pattern = rf"{package}\b.*>={re.escape(framework.oldest)}\b.*extra == ['\"]{framework.extra}['\"]"
    assert [line for line in requirements if re.match(pattern, line)], requirements
