"""smdp.torch.data_parallel.comm_hook: smdp's wire types under torch's own DistributedDataParallel."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
from pretended_device import on_a_device
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_spawn import run

from smdp.torch import comm_hook

TOLERANCE = {"none": 0.0, "fp16": 2e-3, "bf16": 2e-2, "int8": 2e-2}


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 5))


def train(wire: str | None, steps: int = 8) -> list[Tensor]:
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.1)
    if wire is not None:
        ddp.register_comm_hook(None, comm_hook(wire, topk_ratio=0.2))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        optimizer.zero_grad()
        ddp(torch.randn(8, 20, generator=generator)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in ddp.parameters()]


def check_wire_types() -> None:
    plain = train(None)
    for wire, tolerance in TOLERANCE.items():
        for ours, theirs in zip(train(wire), plain, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
    for parameter in train("topk"):
        all_of_them = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
        dist.all_gather(all_of_them, parameter)
        assert all(torch.equal(one, parameter) for one in all_of_them)


@pytest.mark.parametrize("hosts", [None, [0, 1], [0, 0, 1, 1]])
def test_close_to_no_compression(hosts: list[int] | None) -> None:
    run(check_wire_types, size=2 if hosts is None else len(hosts), hosts=hosts)


def check_infinity() -> None:
    for wire in ("int8", "topk"):
        after = []
        for has_infinity in (False, True):
            ddp = DistributedDataParallel(model(), bucket_cap_mb=0.1)
            hook = comm_hook(wire)
            ddp.register_comm_hook(None, hook)
            for step in range(6):
                if step == 3 and not has_infinity:
                    continue
                ddp.zero_grad()
                generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
                loss = ddp(torch.randn(8, 20, generator=generator)).square().mean()
                if step == 3 and dist.get_rank() == 1:
                    loss = loss * float("inf")
                loss.backward()
                if step == 3:
                    assert any(not p.grad.isfinite().all() for p in ddp.parameters())  # type: ignore[union-attr]
            after.append([parameter.grad.clone() for parameter in ddp.parameters()])  # type: ignore[union-attr]
        for one, other in zip(*after, strict=True):
            assert torch.equal(one, other)


def test_infinity_passes_and_leaves_no_trace() -> None:
    run(check_infinity, hosts=[0, 1])


def check_other_dtypes() -> None:
    gradients = []
    for hook in (None, comm_hook("int8")):
        ddp = DistributedDataParallel(model().double())
        if hook is not None:
            ddp.register_comm_hook(None, hook)
        ddp(torch.full((2, 20), 1.0 + dist.get_rank(), dtype=torch.float64)).sum().backward()
        gradients.append([parameter.grad for parameter in ddp.parameters()])
    for plain, ours in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)


def test_other_dtypes_travel_as_they_are() -> None:
    run(check_other_dtypes, hosts=[0, 1])


def check_large_halves() -> None:
    for count in (3, 100_000):
        whole = torch.full((4 * count,), 40000.0, dtype=torch.float16)
        part = torch.empty(count, dtype=torch.float16)
        dist.reduce_scatter_single(part, whole, op=dist.ReduceOp.AVG)
        dist.all_reduce(whole, op=dist.ReduceOp.AVG)
        assert (part == 40000).all()
        assert (whole == 40000).all()
    for compression in (None, "bf16", "int8"):
        ddp = DistributedDataParallel(nn.Linear(300, 30, bias=False).half())
        if compression is not None:
            ddp.register_comm_hook(None, comm_hook(compression))
        ddp(torch.full((1, 300), 40000.0, dtype=torch.float16)).sum().backward()
        assert (ddp.module.weight.grad == 40000).all(), compression


def test_sums_of_halves_do_not_overflow() -> None:
    run(check_large_halves, 4, hosts=[0, 0, 1, 1])


def check_copies_on_a_device() -> None:
    for wire in ("bf16", "int8", "topk"):
        ddp = on_a_device(nn.Linear(300, 3), wire)
        ddp.follow(torch.amp.GradScaler("cpu"))
        inputs = torch.full((2, 300), 1.0 + dist.get_rank())
        for _ in range(2):
            ddp(inputs).sum().backward()
        for copied in (copy.deepcopy(ddp), pickle.loads(pickle.dumps(ddp))):
            assert len(copied._comm_hooks) == 1
            assert copied._comm_hook is not ddp._comm_hook
            gradients = []
            for one in (on_a_device(nn.Linear(300, 3), wire), copied):
                for _ in range(3):
                    one.zero_grad()
                    one(inputs).sum().backward()
                gradients.append(one.module.weight.grad)
            assert torch.equal(*gradients)


def test_copies_of_a_model_on_a_device() -> None:
    run(check_copies_on_a_device, hosts=[0, 1])


def check_hooks_that_differ() -> None:
    ddp = DistributedDataParallel(nn.Linear(30, 3))
    ddp.register_comm_hook(None, comm_hook("bf16" if dist.get_rank() == 0 else "fp16"))
    message = "the options on rank 1 are compression fp16, .*; on rank 0: compression bf16, "
    with pytest.raises(RuntimeError, match=message):
        ddp(torch.ones(1, 30)).sum().backward()


def test_hooks_that_differ() -> None:
    run(check_hooks_that_differ, hosts=[0, 1])


def check_wrong_input() -> None:
    with pytest.raises(ValueError, match="compression is 'zip'; allowed: none, fp16"):
        comm_hook("zip")
    with pytest.raises(ValueError, match="topk_ratio is 2"):
        comm_hook("topk", topk_ratio=2)
    with pytest.raises(ValueError, match=r"\[smdp\] comm_hook: topk_ratio is 'x'; it must be a number"):
        comm_hook("topk", topk_ratio="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\[smdp\] comm_hook: topk_momentum is None; it must be a number"):
        comm_hook("topk", topk_momentum=None)  # type: ignore[arg-type]
    gloo = dist.new_group(backend="gloo")
    dist.barrier()  # a rank of gloo that ends breaks what another one is still making
    with pytest.raises(ValueError, match="backend 'smdp'"):
        comm_hook("fp16", gloo)
    if dist.get_rank() == 0:  # nothing is sent
        with pytest.raises(ValueError, match=r"DistributedDataParallel needs a group .* got 'gloo'"):
            on_a_device(nn.Linear(2, 2), "fp16", process_group=gloo)


def test_wrong_input() -> None:
    run(check_wrong_input)
