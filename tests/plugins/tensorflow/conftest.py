"""Make the helper beside the tests importable, whichever import mode pytest runs in."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytest.importorskip("tensorflow")


def pytest_report_header() -> str:
    """Which file is tested: logs of environments with other releases of TensorFlow show the same."""
    spec = importlib.util.find_spec("smdp")
    if spec is None or spec.origin is None:
        return "smdp is not installed"
    library = Path(spec.origin).parent / "tensorflow" / "libsmdp_tensorflow.so"
    return f"{library.name}: sha256 {hashlib.sha256(library.read_bytes()).hexdigest()}"
