"""Make the helper beside the tests importable, whichever import mode pytest runs in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytest.importorskip("tensorflow")
