"""Which backward is averaged, what a wrapper leaves behind, copies of it, and what compression keeps."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torch_spawn import run

import smdp
from smdp.torch import DistributedDataParallel, SyncBatchNorm, comm_hook


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def inputs(step: int = 0) -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))


def gradients(module: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def agree(values: Tensor) -> bool:
    others = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(others, values)
    return all(torch.equal(other, values) for other in others)


def check_which_backward() -> None:
    ddp = DistributedDataParallel(model())
    ddp(inputs()).sum().backward()
    assert agree(gradients(ddp))
    if dist.get_rank() == 0:  # past the wrapper: this rank's own affair
        ddp.module(inputs(1)).sum().backward()
    dist.barrier()
    assert not agree(gradients(ddp))
    # Gradients of other things than parameters end nothing.
    ddp.zero_grad()
    x = inputs().requires_grad_()
    torch.autograd.grad(ddp(x).sum(), x)
    if dist.get_rank() == 0:
        ddp.module(inputs(1)).sum().backward()
    dist.barrier()
    # Two outputs, two backwards: both count.
    ddp.zero_grad()
    first, second = ddp(inputs()), ddp(inputs(1))
    first.sum().backward()
    second.sum().backward()
    assert agree(gradients(ddp))
    # A backward that broke off before its first gradient does not stop the next.
    ddp.zero_grad()
    output = ddp(inputs())
    output.register_hook(_fail)
    with pytest.raises(ZeroDivisionError):
        output.sum().backward()
    with ddp.no_sync():
        ddp(inputs()).sum().backward()
    assert not agree(gradients(ddp))
    ddp(inputs()).sum().backward()
    assert agree(gradients(ddp))


def _fail(_: Tensor) -> None:
    raise ZeroDivisionError


class Reentrant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = model()

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True)
        return x


def check_reentrant_checkpoints() -> None:
    results = []
    for wrap in (DistributedDataParallel, TorchDistributedDataParallel):
        torch.manual_seed(1)
        ddp = wrap(Reentrant())
        ddp(inputs()).square().sum().backward()
        results.append(gradients(ddp))
        if wrap is DistributedDataParallel:
            assert ddp._hooks.reducer.steps == 1
    assert torch.equal(*results)


def check_freed() -> None:
    counts = []
    for _ in range(3):
        module = model()
        ddp = DistributedDataParallel(module)
        ddp(inputs()).sum().backward()
        refs = [weakref.ref(ddp), weakref.ref(ddp._hooks), weakref.ref(module)]
        del ddp
        gc.collect()
        dist.barrier()
        assert [ref() is None for ref in refs] == [True, True, False]
        module(inputs()).sum().backward()  # a module like any other again
        del module
        gc.collect()
        assert refs[2]() is None
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[2] <= counts[1], counts


def check_copies() -> None:
    ddp = DistributedDataParallel(model(), static_graph=True)
    ddp(inputs()).sum().backward()
    averaged = AveragedModel(ddp)
    averaged.update_parameters(ddp)
    for other in (copy.deepcopy(ddp), pickle.loads(pickle.dumps(ddp))):
        if dist.get_rank() == 0:  # looks at things alone
            with torch.no_grad():
                assert torch.equal(other(inputs()), ddp.module(inputs()))
                averaged(inputs())
        other.zero_grad()
        other(inputs(1)).sum().backward()
        ddp.zero_grad()
        ddp(inputs(1)).sum().backward()
        assert torch.equal(gradients(other), gradients(ddp)) and agree(gradients(other))
    ddp._set_static_graph()
    ddp._set_ddp_runtime_logging_sample_rate(3)
    with pytest.raises(RuntimeError, match="does not support comm hooks"):
        ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)


def check_other_libraries() -> None:
    ddp = DistributedDataParallel(model(), None, None, 0, True, True, None, 25)  # by place, as torch's
    with ddp.no_sync():
        first, second = ddp(inputs()).sum(), ddp(inputs(1)).sum()
        first.backward()
    # As Accelerate's trigger_sync_in_backward().
    ddp.reducer.prepare_for_backward([])
    second.backward()
    assert agree(gradients(ddp))
    ddp._check_reducer_finalized()
    hooked = TorchDistributedDataParallel(model())
    hooked.register_comm_hook(None, comm_hook("int8", topk_ratio=0.5))
    hooked(inputs()).sum().backward()
    for other in (copy.deepcopy(hooked), pickle.loads(pickle.dumps(hooked)), AveragedModel(hooked).module):
        other(inputs(1)).sum().backward()
        assert agree(gradients(other))
        assert torch.equal(other.module[0].weight, hooked.module[0].weight)


class Parts(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(4, width), nn.Linear(4, width)

    def forward(self, batch: Tensor, used: str) -> Tensor:
        return sum(getattr(self, name)(batch).sum() for name in used.split())  # type: ignore[return-value]


def check_left_overs() -> None:
    """What is averaged is not averaged again, unless some rank has added to it."""
    rank = dist.get_rank()
    for wire, width in (("none", 3), ("bf16", 3), ("none", 20_000)):
        torchs = TorchDistributedDataParallel(Parts(width), find_unused_parameters=True)
        ours = DistributedDataParallel(Parts(width), compression=wire)
        for step, used in enumerate(("first second", "first", "first", "first second" if rank else "first")):
            kept = [] if step == 0 else [one.grad.clone() for one in ours.module.second.parameters()]
            for one in (torchs, ours):
                one(inputs(step), used).backward()
            if step in (1, 2):
                for one, before in zip(ours.module.second.parameters(), kept, strict=True):
                    assert torch.equal(one.grad, before), (wire, width, step)
            assert agree(gradients(ours))
            near = 0.0 if wire == "none" else 0.02
            torch.testing.assert_close(gradients(ours), gradients(torchs), atol=near, rtol=near)
    # With accumulation: what no_sync() has added is used.
    ours = DistributedDataParallel(Parts(3))
    with ours.no_sync():
        ours(inputs(), "second").backward()
    ours(inputs(1), "first").backward()
    assert agree(gradients(ours))


def check_registration() -> None:
    rank = dist.get_rank()

    def other(change: str) -> nn.Module:
        wide = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        module = model() if rank == 0 or change != "shape" else wide
        if rank and change == "dtype":
            module[2] = module[2].double()
        if rank and change == "more":
            module.append(nn.Linear(2, 2))
        if rank and change == "frozen":
            module[2].requires_grad_(False)
        return module

    for change, name in (
        ("shape", "2.weight"),
        ("dtype", "2.weight"),
        ("more", "3.weight"),
        ("frozen", "2.weight"),
    ):
        with pytest.raises(smdp.MismatchError, match=f"lists of gradients differ: .*{name}"):
            DistributedDataParallel(other(change))
    torch.manual_seed(rank)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
    assert agree(torch.cat([p.detach().flatten() for p in ddp.parameters()]))  # rank 0's
    apart = DistributedDataParallel(nn.Linear(4, 2), init_sync=False)
    assert not agree(torch.cat([p.detach().flatten() for p in apart.parameters()]))


def check_small_things() -> None:
    ddp = DistributedDataParallel(model())
    for factor in (0.0, -1.0, float("nan")):
        with pytest.raises(
            ValueError, match=r"rescale_residuals\(.*\): the factor must be a finite number above 0"
        ):
            ddp.rescale_residuals(factor)
    for cap in (float("nan"), float("inf"), 0, -1):
        with pytest.raises(ValueError, match=r"bucket_cap_mb is .*; it must be a number of MiB"):
            DistributedDataParallel(model(), bucket_cap_mb=cap)
    with pytest.raises(ValueError, match="LazyBatchNorm1d, which does not know its number of channels"):
        SyncBatchNorm.convert(nn.Sequential(nn.LazyBatchNorm1d()))
    norm = SyncBatchNorm(2, track_running_stats=False).eval()
    if dist.get_rank() == 0:  # not a collective
        assert norm(torch.randn(4, 2)).shape == (4, 2)
    half = nn.Linear(4, 2, dtype=torch.bfloat16)
    if hasattr(half.weight, "grad_dtype"):
        half.weight.grad_dtype = torch.float32
        wrapped = DistributedDataParallel(half)
        with pytest.raises(RuntimeError, match=r"is torch\.float32 .*, but the parameter is torch\.bfloat16"):
            wrapped(inputs().bfloat16()).sum().float().backward()


def check_changed_after_wrapping() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        net = nn.Sequential(nn.Linear(4, 4).requires_grad_(requires_grad=False), nn.Linear(4, 1, bias=False))
        ddp = DistributedDataParallel(net)
        ddp.to(dtype)
        with pytest.raises(
            RuntimeError,
            match=rf"'1.weight' was torch.float32 of 4 elements .* {dtype} of 4 now: it was cast or resized",
        ):
            ddp(torch.ones(2, 4, dtype=dtype)).sum().backward()
    shorter = nn.Linear(4, 1, bias=False)
    ddp = DistributedDataParallel(shorter)
    shorter.weight.data = torch.zeros(1, 2)
    with pytest.raises(RuntimeError, match=r"'weight' .* is torch.float32 of 2 now.*Wrap the model again"):
        ddp(torch.ones(2, 2)).sum().backward()


def check_momentum_on_one_host() -> None:
    """The momentum that the optimizer gives away is there, too, where nothing is compressed."""
    results = []
    for options, momentum in (({"compression": "topk", "topk_momentum": 0.9}, 0.0), ({}, 0.9)):
        ddp = DistributedDataParallel(model(), **options)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=momentum)
        for step in range(5):
            optimizer.zero_grad()
            ddp(inputs(step)).square().sum().backward()
            optimizer.step()
        results.append(torch.cat([p.detach().flatten() for p in ddp.parameters()]))
    torch.testing.assert_close(*results)
    hooked = TorchDistributedDataParallel(model())
    hooked.register_comm_hook(None, comm_hook("topk", topk_momentum=0.9))
    optimizer = torch.optim.SGD(hooked.parameters(), lr=0.1)
    for step in range(5):
        optimizer.zero_grad()
        hooked(inputs(step)).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(torch.cat([p.detach().flatten() for p in hooked.parameters()]), results[1])


class Two(nn.Module):
    """Two parameters of one size, so that torch's buckets change places unseen."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.zeros(2000)) for _ in range(2))

    def forward(self, to_a: Tensor, to_b: Tensor) -> Tensor:
        return (self.a * to_a).sum() + (self.b * to_b).sum()


def check_residuals() -> None:
    """What is kept back of a gradient comes later, at its place, times the loss scale's change."""
    generator = torch.Generator().manual_seed(3)
    gradient, nothing = torch.randn(2000, generator=generator), torch.zeros(2000)
    for wrapper in ("ours", "hook"):
        for at in (0, 1):  # the step that has the gradient
            for factor in (1.0, 0.5):
                net = Two()
                if wrapper == "ours":
                    ddp = keeper = DistributedDataParallel(net, compression="topk", topk_ratio=0.1)
                else:
                    ddp = TorchDistributedDataParallel(net, bucket_cap_mb=1e-3)
                    keeper = comm_hook("topk", topk_ratio=0.1)
                    ddp.register_comm_hook(None, keeper)
                first = came = torch.zeros(2000)
                for step in range(45):
                    ddp.zero_grad()
                    ddp(gradient if step == at else nothing, nothing).backward()
                    came = came + net.a.grad
                    assert not net.b.grad.any()
                    if step == at:
                        first = came
                        keeper.rescale_residuals(factor)
                expected = first + factor * (gradient - first)
                torch.testing.assert_close(came, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "check",
    [
        check_which_backward,
        check_reentrant_checkpoints,
        check_freed,
        check_copies,
        check_other_libraries,
        check_left_overs,
        check_registration,
        check_small_things,
        check_changed_after_wrapping,
        check_momentum_on_one_host,
    ],
)
def test_on_one_host(check) -> None:
    run(check, 2)


def test_left_overs_of_three_ranks() -> None:
    run(check_left_overs, 3)
    run(check_left_overs, 3, hosts=[0, 1, 1])


def test_freed_between_hosts() -> None:
    run(check_freed, 2, hosts=[0, 1])


def test_residuals() -> None:
    run(check_residuals, 2, hosts=[0, 1])
