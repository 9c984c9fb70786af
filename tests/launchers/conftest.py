from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))
from job import TRAIN, results, run


@pytest.fixture(scope="session")
def loss() -> str:
    """What the script prints without any launcher: the loss that all of them must come to."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    done = run(TRAIN)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("no launcher has started this process, so it trains alone") == 1
    (line,) = results(done.stdout)
    ranks, _, value = line.partition(" ")
    assert ranks == "ranks=1"
    return value
