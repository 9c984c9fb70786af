"""What smdp tells about a torch job: profiler ranges, counters, where the time of steps goes."""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from pretended_device import on_a_device
from torch import Tensor, nn
from torch.profiler import profile
from torch.utils.data import DataLoader, Dataset
from torch_spawn import run

import smdp
from smdp.cli import trace
from smdp.cli.trace.files import read
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
    assert {"smdp:wait for gradients", "smdp:barrier"} <= ranges
    stats = smdp.stats()
    assert stats["steps"] == (12 if slow_rank < 0 else 6)
    assert stats["input_seconds"] > 0.05
    assert stats["exposed_seconds"] > 0
    assert len(stats["rank_seconds"]) == 2
    if slow_rank >= 0:
        assert stats["slowest_rank"] == slow_rank
        assert stats["slowest_steps"][slow_rank] == 5  # the first has no beginning
    assert "fusion buffer" in smdp.explain(ddp)


def check_ranges() -> None:
    size = dist.get_world_size()
    one, all_of_them = torch.ones(3), torch.ones(3 * size)
    parts = [torch.ones(3) for _ in range(size)]
    others = [torch.ones(3) for _ in range(size)]
    root = dist.get_rank() == 0
    peer = 1 - dist.get_rank()
    calls: list[tuple[str, Callable[[], object]]] = [
        ("all_reduce", lambda: dist.all_reduce(one)),
        ("reduce", lambda: dist.reduce(one, 0)),
        ("broadcast", lambda: dist.broadcast(one, 0)),
        ("all_gather", lambda: dist.all_gather(parts, one)),
        ("all_gather", lambda: dist.all_gather_into_tensor(all_of_them, one)),
        ("reduce_scatter", lambda: dist.reduce_scatter(one, parts)),
        ("reduce_scatter", lambda: dist.reduce_scatter_tensor(one, all_of_them)),
        ("all_to_all", lambda: dist.all_to_all(others, parts)),
        ("all_to_all", lambda: dist.all_to_all_single(torch.ones(3 * size), all_of_them)),
        ("gather", lambda: dist.gather(one, parts if root else None)),
        ("scatter", lambda: dist.scatter(one, parts if root else None)),
        ("barrier", dist.barrier),
        ("send" if root else "recv", lambda: (dist.send if root else dist.recv)(one, peer)),
    ]
    for name, call in calls:
        with profile(record_shapes=True) as profiler:
            call()
        found = [event for event in profiler.events() if event.name.startswith("smdp:")]
        assert [event.name for event in found] == [f"smdp:{name}"], (name, found)
        if name == "all_reduce":
            assert found[0].input_shapes[0] == [3]
            assert not found[0].is_async
    store = dist.distributed_c10d._get_default_store()
    with profile() as profiler:
        if root:
            store.wait(["rank 1 has called it"])
            time.sleep(0.05)
        work = dist.all_reduce(one, async_op=True)
        if not root:
            store.set("rank 1 has called it", "")
        work.wait()
    (event,) = [event for event in profiler.events() if event.name == "smdp:all_reduce"]
    if not root:  # it waits for rank 0
        assert event.is_async
        assert event.time_range.elapsed_us() > 30_000


def test_each_call_is_one_range() -> None:
    run(check_ranges)


def check_algorithm() -> None:
    ddp = DistributedDataParallel(nn.Linear(1500, 1000))
    ddp(torch.ones(1, 1500)).sum().backward()
    expected = "two_shot" if len(ddp.process_group.core.hosts) == 1 else "direct"
    sums = [one for one in smdp.stats()["operations"] if one["operation"] == "all_reduce"]
    most = max(sums, key=lambda one: int(one["bytes"]))
    assert most["algorithm"] == expected, sums


def test_gradients_are_counted_by_the_algorithm_of_the_largest() -> None:
    run(check_algorithm)
    run(check_algorithm, hosts=[0, 1])


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 1))


SMALL_BYTES = 4 * (16 * 17 + 17)


def check_hook() -> None:
    ddp = nn.parallel.DistributedDataParallel(small())
    ddp.register_comm_hook(None, smdp.torch.comm_hook("bf16"))
    with profile() as profiler:
        for batch in DataLoader(SlowData(), batch_size=1):
            if dist.get_rank() == 1:
                time.sleep(0.05)
            ddp(batch).sum().backward()
    assert "smdp:comm_hook" in {event.key for event in profiler.key_averages()}
    stats = smdp.stats()
    assert stats["input_seconds"] > 0.05
    assert (stats["steps"], stats["gradient_bytes"]) == (12, 12 * SMALL_BYTES)
    # Rank 0 waits for rank 1, which computes for longer.
    assert stats["exposed_seconds"] > (0.3 if dist.get_rank() == 0 else 0), stats
    # The first step has no beginning; in the second forward torch agrees on buckets, so all wait there.
    assert stats["slowest_rank"] == 1 and stats["slowest_steps"][1] >= 8, stats
    for number, seconds in enumerate(stats["rank_seconds"]):
        assert 11 * (0.005 + 0.05 * number) < seconds < 30, stats


def test_a_hook_of_torchs_class_shows_itself(tmp_path: Path) -> None:
    run(check_hook, env={"SMDP_TRACE": str(tmp_path)}, hosts=[0, 1])
    text = trace.merge(tmp_path).read_text()
    assert "comm_hook: bucket 0 of 4 gradients" in text
    report = json.loads(trace.report_text(tmp_path, as_json=True))
    assert (report["steps"], report["slowest_rank"]) == (11, 1)
    assert report["straggler_seconds"] > 0.01


def check_torchs_reducer() -> None:
    for model in (on_a_device(small()), on_a_device(small(), "int8"), copy.deepcopy(on_a_device(small()))):
        before = smdp.stats()
        for batch in DataLoader(SlowData(), batch_size=2):
            with model.no_sync():
                model(batch).sum().backward()
            model(batch).sum().backward()
        after = smdp.stats()
        assert after["steps"] - before["steps"] == 6
        assert after["gradient_bytes"] - before["gradient_bytes"] == 6 * SMALL_BYTES
        assert after["input_seconds"] - before["input_seconds"] > 0.05
        assert 0 < after["exposed_seconds"] - before["exposed_seconds"] < 5
    hooked = on_a_device(small())
    hooked.register_comm_hook(None, smdp.torch.comm_hook("none"))  # which counts by itself
    hooked(torch.ones(2, 16)).sum().backward()
    assert smdp.stats()["steps"] == after["steps"] + 1


def test_steps_of_torchs_reducer_count(tmp_path: Path) -> None:
    run(check_torchs_reducer, env={"SMDP_TRACE": str(tmp_path)}, hosts=[0, 1])
    report = json.loads(trace.report_text(tmp_path, as_json=True))
    assert report["steps"] == 3 * 5
    assert report["communication_seconds"] > 0


def check_models_in_turn() -> None:
    often, seldom = DistributedDataParallel(small()), DistributedDataParallel(small())
    for number, batch in enumerate(DataLoader(SlowData(), batch_size=1)):
        often(batch).sum().backward()
        if number % 2:
            seldom(batch).sum().backward()
        if dist.get_rank() == 1:
            time.sleep(0.03)
    dist.barrier()
    after = DistributedDataParallel(small())
    for batch in DataLoader(SlowData(), batch_size=2):
        after(batch).sum().backward()


def test_models_that_are_trained_in_turn_share_their_steps(tmp_path: Path) -> None:
    run(check_models_in_turn, env={"SMDP_TRACE": str(tmp_path)})
    report = json.loads(trace.report_text(tmp_path, as_json=True))
    assert report["steps"] == 11 + 5, "those of the model that has the most, then of the next one"
    assert 0.005 < report["input_seconds"] < 0.05, "a batch of one or two rows"
    # Rank 0 waits for rank 1, where two models step in one of them.
    assert 0.01 < report["straggler_seconds"] < report["step_seconds"]


def check_joined() -> None:
    """A rank without inputs gives zeros, and counts no steps."""
    ddp = on_a_device(small(), "bf16")
    steps = 2 + 2 * dist.get_rank()
    with ddp.join():
        for _ in range(steps):
            ddp(torch.ones(2, 16)).sum().backward()
    assert smdp.stats()["steps"] == steps


def test_steps_count_where_ranks_have_run_out_of_inputs() -> None:
    run(check_joined, hosts=[0, 1])


def check_overlap() -> None:
    layers = [nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(6)]
    for layer in layers:
        layer.register_full_backward_hook(lambda *_: time.sleep(0.02))
    ddp = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.25)
    for _ in range(3):
        ddp(torch.ones(4, 256)).sum().backward()


def test_the_first_sum_is_over_before_the_last_gradient_comes(tmp_path: Path) -> None:
    run(check_overlap, env={"SMDP_TRACE": str(tmp_path)}, hosts=[0, 1])
    for one in read(tmp_path):
        for step in (0, 1, 2):
            events = [
                event for event in one.spans if event["cat"] == "buffer" and event["args"]["step"] == step
            ]
            fused = sorted(
                (event for event in events if event["name"] == "fuse"),
                key=lambda event: float(event["ts"]) + event["dur"],
            )
            assert len(fused) > 3
            (first,) = (
                event for event in events if event["name"] == "reduce" and event["tid"] == fused[0]["tid"]
            )
            assert first["ts"] + first["dur"] < fused[-1]["ts"] + fused[-1]["dur"]
            returned = [event["ts"] + event["dur"] for event in events if event["name"] == "return"]
            assert len(set(returned)) > 1, "each when its own means were in their places"


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


def check_debug_log() -> None:
    ddp = DistributedDataParallel(small())
    for _ in range(3):
        ddp(torch.ones(2, 16)).sum().backward()


def test_the_debug_log_explains_both_layouts() -> None:
    for output in run(check_debug_log, env={"SMDP_LOG_LEVEL": "debug"}, hosts=[0, 1]):
        # More, where the measurement at wrap was disturbed.
        assert output.count("gradients in 1 fusion buffer between 2 ranks on 2 hosts") >= 2, output


def check_stall() -> None:
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 1)))
    for step in range(2):
        if step == 1 and dist.get_rank() == 1:
            time.sleep(4)
        ddp(torch.ones(2, 16)).sum().backward()


def test_a_stall_names_gradients_and_ranks() -> None:
    first, _ = run(check_stall, env={"SMDP_STALL_TIME": "1"})
    line = next(line for line in first.splitlines() if "is still running after" in line)
    assert "(gradients '1.bias' to '0.weight'" in line or "(gradients '1.weight' to '0.weight'" in line
    assert "rank 1" in line.split("is still running")[1]
