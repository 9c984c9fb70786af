"""What smdp tells about a torch job: profiler ranges, counters, where the time of steps goes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import profile
from torch.utils.data import DataLoader, Dataset
from torch_spawn import run

import smdp
from smdp.cli import trace
from smdp.torch import DistributedDataParallel


class SlowData(Dataset[Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(0.005)
        return torch.full((16,), float(index))


def check_training() -> None:
    slow_rank = int(os.environ.get("SLOW_RANK", "-1"))
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 1)))
    with profile() as profiler:
        for batch in DataLoader(SlowData(), batch_size=1 if slow_rank < 0 else 2):
            if dist.get_rank() == slow_rank:
                time.sleep(0.05)
            ddp(batch).sum().backward()
        dist.barrier()
    ranges = {event.key for event in profiler.key_averages()}
    assert {"smdp::wait for gradients", "smdp::barrier"} <= ranges
    stats = smdp.stats()
    assert stats["steps"] == (12 if slow_rank < 0 else 6)
    assert stats["input_seconds"] > 0.05
    assert stats["exposed_seconds"] > 0
    assert len(stats["rank_seconds"]) == 2
    if slow_rank >= 0:
        assert stats["slowest_rank"] == slow_rank
        assert stats["slowest_steps"][slow_rank] == 5  # the first has no beginning
    assert "fusion buffers" in smdp.explain(ddp)


def check_hook() -> None:
    ddp = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 1)))
    ddp.register_comm_hook(None, smdp.torch.comm_hook("bf16"))
    with profile() as profiler:
        for batch in DataLoader(SlowData(), batch_size=1):
            ddp(batch).sum().backward()
    assert "smdp::comm_hook" in {event.key for event in profiler.key_averages()}
    assert smdp.stats()["input_seconds"] > 0.05


def test_a_hook_of_torchs_class_shows_itself(tmp_path: Path) -> None:
    run(check_hook, env={"SMDP_TRACE": str(tmp_path)})
    text = trace.merge(tmp_path).read_text()
    assert "comm_hook: bucket 0 of 4 gradients" in text


def test_the_data_loader_is_blamed(tmp_path: Path) -> None:
    run(check_training, env={"SMDP_TRACE": str(tmp_path)})
    report = json.loads(trace.report_text(tmp_path, as_json=True))
    assert report["steps"] == 11
    assert report["input_seconds"] > 0.004
    assert "the data loader" in trace.report_text(tmp_path)


def test_the_slow_rank_is_blamed(tmp_path: Path) -> None:
    run(check_training, env={"SMDP_TRACE": str(tmp_path), "SLOW_RANK": "1"}, hosts=[0, 1])
    report = json.loads(trace.report_text(tmp_path, as_json=True))
    assert report["slowest_rank"] == 1
    assert report["straggler_seconds"] > 0.01
    assert "rank 1, the slowest" in trace.report_text(tmp_path)
    for event in json.loads(trace.merge(tmp_path).read_text()):
        if event.get("cat") == "buffer":
            assert event["dur"] >= 0
            assert event["name"] in ("fuse", "queue", "reduce", "return")


def check_stall() -> None:
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 1)))
    for step in range(2):
        if step == 1 and dist.get_rank() == 1:
            time.sleep(4)
        ddp(torch.ones(2, 16)).sum().backward()


def test_a_stall_names_gradients_and_ranks() -> None:
    first, _ = run(check_stall, env={"SMDP_STALL_TIME": "1"})
    line = next(line for line in first.splitlines() if "has taken" in line)
    assert "(gradients '1.bias' to '0.weight'" in line or "(gradients '1.weight' to '0.weight'" in line
    assert "rank 1" in line.split("goes on")[1]
