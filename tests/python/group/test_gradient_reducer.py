"""The core's gradient reducer by its binding: what a framework of one's own hands over."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smdp.cli.trace.files import read
from smdp.cli.trace.report import report


def test_a_trace_counts_the_steps_alone(
    job: Callable[..., Any], finish: Callable[..., None], tmp_path: Path
) -> None:
    code = """
from smdp import _core
from smdp._buffers import DType
g = joined()
reducer = _core.GradientReducer(g._core, [("a", 1000, int(DType.FLOAT32), "")])
for step in range(5):
    a = np.ones(1000, np.float32)
    reducer.ready(0, a.ctypes.data)
    reducer.finish()
    reducer.wait()
sums = [row for row in smdp.stats()["operations"] if row["operation"] == "all_reduce"]
print("calls", sum(row["calls"] for row in sums))
"""
    ranks = job(2, code, environ={"SMDP_TRACE": str(tmp_path)})
    finish(ranks)
    operations = report(read(tmp_path), {0: 0.0, 1: 0.0}).operations
    assert [(one.name, one.calls) for one in operations if one.name == "all_reduce"] == [("all_reduce", 10)]
    assert all("calls 5" in rank.output for rank in ranks)


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(_has_driver(), reason="CUDA's driver is here")
@pytest.mark.parametrize("hosts", [[0, 0], [0, 1]], ids=["one host", "two hosts"])
def test_a_device_needs_a_driver_and_nothing_is_lost_without(
    hosts: list[int], job: Callable[..., Any], finish: Callable[..., None]
) -> None:
    code = """
from smdp import _core
from smdp._buffers import DType
g = joined()
reducer = _core.GradientReducer(g._core, [(name, 100, int(DType.FLOAT32), "") for name in "ab"])
a, b = (np.full(100, g.rank + x, np.float32) for x in (1, 2))
reducer.ready(0, a.ctypes.data)
try:
    reducer.ready(1, b.ctypes.data, 0)
except smdp.SmdpError as error:
    assert "CUDA driver could not be loaded" in str(error) and "docker run --gpus all" in str(error), error
else:
    raise AssertionError("there is no driver")
try:
    reducer.ready(1, b.ctypes.data, -1)
except smdp.SmdpError as error:
    assert "CUDA driver could not be loaded" in str(error), error
reducer.ready(1, b.ctypes.data)
reducer.finish()
reducer.wait()
assert (a == 1.5).all() and (b == 2.5).all()
"""
    finish(job(2, code, hosts=hosts))
