"""Times of units, and cuts by them, while something disturbs the clock."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch_spawn import run

import smdp.torch
from smdp.torch.pipelining.analysis import unit_costs
from smdp.torch.pipelining.analysis.clocks import Reading, wall_clock
from smdp.torch.pipelining.analysis.sampled_trace import pooled
from smdp.torch.pipelining.analysis.samples import LEAST_SPREAD, Passes, Samples
from smdp.torch.pipelining.analysis.tracing import trace

WIDTH = 8
REPEATS = 4


class Clock:
    """Shows a second for everything but for the readings that are disturbed."""

    def __init__(self, disturbed: range) -> None:
        self.readings = 0
        self._disturbed = disturbed

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Reading]:
        reading = Reading()
        yield reading
        is_disturbed = self.readings in self._disturbed
        reading.seconds = 1.0 + is_disturbed * (2 + self.readings)
        self.readings += 1


def measured(clock: Clock) -> Samples:
    samples, layer = Samples(), nn.Linear(WIDTH, WIDTH)
    unit_costs.measure(
        layer,
        (torch.ones(2, WIDTH),),
        {},
        has_gradient=lambda tensor: True,
        parameters=list(layer.parameters()),
        resident={},
        samples=samples,
        repeats=REPEATS,
        clock=clock,
    )
    return samples


@pytest.mark.parametrize("length", [1, 4])
def test_what_disturbs_some_readings_changes_no_time(length: int) -> None:
    for first in range(10):
        samples = measured(Clock(range(first, first + length)))
        assert samples.least() == Passes(1.0, 1.0, 1.0) and samples.spread() == LEAST_SPREAD
        # All ranks run a unit equally often, whatever their clocks show: it may communicate.
        assert len(samples.times) == REPEATS


def test_the_spread_is_how_far_the_second_least_is_away() -> None:
    assert Samples([Passes(1, 1, 2)], []).spread() == 1.0  # seen once: not known at all
    assert Samples([Passes(1, 1, 1), Passes(1.25, 1, 1.25), Passes(9, 9, 9)], []).spread() == 0.25
    assert Samples([Passes(1, 1, 2), Passes(1, 1, 2.01)], []).spread() == LEAST_SPREAD
    assert Samples([], [Passes(1, 1, 2)]).spread() == 0.0  # counted, not measured


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, width), nn.Linear(width, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(torch.relu(self.up(x)))
        return result


def test_units_of_one_class_and_shapes_have_one_time() -> None:
    model = nn.Sequential(*(Block(width) for width in (16, 16, 16, 32, 16)))
    found = trace(model, [str(place) for place in range(5)], (torch.randn(4, WIDTH),))
    # The first one's input has no gradient.
    kinds = [kind for (kind,) in found.kinds]
    assert kinds[1] == kinds[2] == kinds[4] and len(set(kinds)) == 3
    units = found.by_time().trace.units
    assert units[1].forward == units[2].forward == units[4].forward != units[3].forward
    assert units[1].backward_weight == units[4].backward_weight > 0
    work = [
        weights.trace
        for weights in (found.by_work(), trace(model, list("01234"), (torch.randn(4, WIDTH),)).by_work())
    ]
    assert work[0] == work[1]  # the same in every run


def test_the_least_is_that_of_all_ranks() -> None:
    model, inputs = nn.Sequential(Block(16)), (torch.randn(4, WIDTH),)
    ranks = [trace(model, ("0",), inputs) for _ in range(2)]
    (kind,) = ranks[0].kinds[0]
    ranks[0].samples[kind].times[:] = [Passes(5, 5, 9)]
    ranks[1].samples[kind].times[:] = [Passes(2, 3, 6), Passes(2, 3, 6)]
    (unit,) = pooled(ranks).by_time().trace.units
    assert (unit.forward, unit.backward_input, unit.backward_weight) == (2, 3, 3)


BURN = "while True: pass"


@contextlib.contextmanager
def busy_machine() -> Iterator[None]:
    """Runs a process per core that takes all the time that it gets."""
    cores = os.sched_getaffinity(0)
    burners = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(min(len(cores), 4))]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def test_waiting_for_a_core_takes_no_time() -> None:
    def spin(seconds: float) -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    if not os.path.exists("/proc/thread-self/schedstat"):
        pytest.skip("this kernel does not count how long threads wait for a core")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with busy_machine():
            begin = time.perf_counter()
            with wall_clock() as reading:
                spin(0.1)
            passed = time.perf_counter() - begin
    finally:
        os.sched_setaffinity(0, cores)
    assert 0.1 <= reading.seconds < 0.15 < passed


def is_cut_equally() -> None:
    with busy_machine():
        for _ in range(3):
            torch.manual_seed(0)
            model = nn.Sequential(
                *(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)) for _ in range(12))
            )
            pipe = smdp.torch.pipeline(model, stages=2, microbatches=4, example_inputs=torch.randn(64, 64))
            own = torch.tensor([sum(each.numel() for each in pipe.parameters())])
            both = [torch.zeros_like(own) for _ in range(2)]
            dist.all_gather(both, own)
            assert both[0] == both[1]


def test_equal_blocks_are_cut_equally_on_a_busy_machine() -> None:
    printed = run(is_cut_equally, env={"SMDP_LOG_LEVEL": "info"})
    lines = [line for line in "".join(printed).splitlines() if "cut of Sequential: stage" in line]
    assert len(lines) == 3 * 2, printed  # by rank 0 alone
    assert "stage 0 on rank 0: 0.0 to 5.2, " in lines[0] and "parameters 0.8 MiB (0.1985 million)" in lines[0]
