"""What four ranks on a host hold: the figures of tests/benchmarks/sharded_memory.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from sharded_memory import IDLE, KINDS, most

RANKS = 4


@pytest.mark.slow
@pytest.mark.timeout(600)  # five trainings
def test_sharding_saves_memory() -> None:
    idle = most(IDLE, RANKS, [])
    whole, sharded, shared, in_shards = (most(kind, RANKS, []) - idle for kind in KINDS)
    assert sharded <= 0.7 * whole, (whole, sharded)
    assert shared <= 0.5 * whole, (whole, shared)
    assert in_shards <= 0.5 * whole, (whole, in_shards)
