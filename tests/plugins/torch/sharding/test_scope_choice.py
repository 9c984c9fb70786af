"""`scope="auto"` takes the faster scope whose state fits, and all ranks take the same."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.distributed as dist
from sharded_models import adamw, backward, linear, pair
from torch_spawn import run

from smdp import _kernel_files
from smdp.torch import DistributedDataParallel, ShardedOptimizer
from smdp.torch.sharding.scope_choice import Choice, Demand, chosen

TWO_BY_FOUR = [[0, 1, 2, 3], [4, 5, 6, 7]]
# 1 GB of parameters with AdamW, which a rank updates at 10 GB/s.
SLOW, FAST = (1e-4, 0.1e9, 1e10), (1e-4, 100e9, 1e10)
PLENTY = 1 << 50


def choice(
    hosts: list[list[int]], speed: tuple[float, float, float], available: int, *, is_overlapped: bool = False
) -> Choice:
    return chosen(Demand(10**9, 2 * 10**9, is_overlapped), hosts, speed, available)


def test_the_time_after_backward_decides() -> None:
    slow, fast = choice(TWO_BY_FOUR, SLOW, PLENTY), choice(TWO_BY_FOUR, FAST, PLENTY)
    assert (slow.scope, fast.scope) == ("host", "world")
    # A rank of a host updates a quarter: 4 GB / 4 at 10 GB/s. The world's updates half as much.
    assert "about 100.0 ms, and 'world' 5050.1 ms" in slow.reason
    assert "about 55.1 ms, and 'host' 100.0 ms" in fast.reason
    assert choice(TWO_BY_FOUR, SLOW, PLENTY, is_overlapped=True).scope == "world"


def test_memory_and_hosts_decide_before() -> None:
    assert choice(TWO_BY_FOUR, SLOW, 2_600_000_000).scope == "host"
    small = choice(TWO_BY_FOUR, SLOW, 2_400_000_000)
    assert small.scope == "world" and "2000 MB on every host is more than 0.8 of the 2400 MB" in small.reason
    assert choice([[0, 1, 2, 3]], SLOW, PLENTY) == Choice("world", "all ranks are on one host")
    assert choice([[0, 1], [2]], SLOW, PLENTY).scope == "world"


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def ranks_agree() -> None:
    kept = Kept()
    logging.getLogger("smdp.torch").addHandler(kept)
    logging.getLogger("smdp.torch").setLevel(logging.INFO)
    rank = dist.get_rank()
    _kernel_files.available_memory = lambda: 1 if rank == 3 else None
    (model, optimizer) = pair(linear, adamw, "auto")[1]
    assert isinstance(optimizer, ShardedOptimizer)
    backward(model)
    optimizer.step()
    told = [line for line in kept.lines if "scope='auto' is 'world': a whole state of " in line]
    assert len(told) == (1 if rank == 0 else 0), kept.lines
    _kernel_files.available_memory = lambda: None
    again, _ = pair(linear, adamw, "auto")[1]
    scopes = [""] * dist.get_world_size()
    dist.all_gather_object(scopes, again.gradient_hooks("this test").scope)
    assert len(set(scopes)) == 1, scopes


def single_ranks_share_nothing() -> None:
    model = DistributedDataParallel(linear())
    before = [one.data_ptr() for one in model.parameters()]
    with pytest.raises(ValueError, match="of these 2 hosts one has a single rank"):
        ShardedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, "host")
    assert [one.data_ptr() for one in model.parameters()] == before
    optimizer = ShardedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, "auto")
    backward(model)
    optimizer.step()


def test_all_ranks_take_the_same() -> None:
    run(ranks_agree, 4, hosts=[0, 0, 1, 1])


def test_a_host_with_one_rank_cannot_share_its_state() -> None:
    run(single_ranks_share_nothing, 2, hosts=[0, 1])
