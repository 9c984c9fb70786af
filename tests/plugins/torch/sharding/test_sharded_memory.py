"""What four ranks on a host hold: the figures of tests/benchmarks/sharded_memory.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from sharded_memory import IDLE, KINDS, most

RANKS = 4


@pytest.mark.slow
def test_sharding_leaves_seven_tenths_of_the_memory() -> None:
    idle = most(IDLE, RANKS, [])
    whole, sharded = (most(kind, RANKS, []) - idle for kind in KINDS[:2])
    assert sharded <= 0.7 * whole, (whole, sharded)
