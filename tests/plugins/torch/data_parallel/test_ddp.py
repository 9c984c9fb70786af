"""DistributedDataParallel over smdp against one process on the whole batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch_spawn import run

STEPS = 4
ROWS = 6


class Net(nn.Module):
    """A few layers, one of them never or not always used."""

    def __init__(self, unused: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 16)
        self.sometimes = nn.Linear(16, 16) if unused else None
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor, use: bool = False) -> Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        if use and self.sometimes is not None:
            x = torch.tanh(self.sometimes(x))
        return self.last(x)


def model(unused: bool = False) -> Net:
    torch.manual_seed(1)
    return Net(unused).double()


def batch(step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(ROWS, 8, generator=generator, dtype=torch.float64)


def train(
    net: nn.Module, data: Callable[[int], Tensor], use: Callable[[int], bool] = lambda _: False
) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        net(data(step), use(step)).square().mean().backward()
        optimizer.step()


def whole(step: int) -> Tensor:
    return torch.cat([batch(step, rank) for rank in range(dist.get_world_size())])


def part(step: int) -> Tensor:
    return batch(step, dist.get_rank())


def close(net: nn.Module, expected: nn.Module, atol: float = 1e-9) -> None:
    pairs = zip(net.state_dict().items(), expected.state_dict().values(), strict=True)
    for (name, got), want in pairs:
        torch.testing.assert_close(
            got, want, rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
        )


def check_options() -> None:
    options: list[dict[str, Any]] = [
        {},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"bucket_cap_mb": 0.001},
        {"bucket_cap_mb": 0.001, "gradient_as_bucket_view": True, "broadcast_buffers": False},
    ]
    expected = model()
    train(expected, whole)
    for option in options:
        net = DistributedDataParallel(model(), **option)
        train(net, part)
        close(net.module, expected)


def check_unused_parameters() -> None:
    # Unused by all in even steps, by all but rank 0 in odd ones: zero there, averaged over all ranks.
    size = dist.get_world_size()
    net = DistributedDataParallel(model(True), find_unused_parameters=True)
    train(net, part, lambda step: step % 2 == 1 and dist.get_rank() == 0)
    expected = model(True)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = [
            expected(batch(step, rank), step % 2 == 1 and rank == 0).square().mean() for rank in range(size)
        ]
        (torch.stack(losses).sum() / size).backward()
        optimizer.step()
    close(net.module, expected)


def check_no_sync() -> None:
    net, expected = DistributedDataParallel(model()), model()
    for step in range(STEPS):
        with net.no_sync() if step < STEPS - 1 else contextlib.nullcontext():
            net(part(step)).square().mean().backward()
        expected(whole(step)).square().mean().backward()
    for got, want in zip(net.module.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)


def train_unevenly(net: nn.Module, data: Callable[[int], Tensor], steps: int) -> list[list[Tensor]]:
    """Train, and give the gradients of each step."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    gradients = []
    for step in range(steps):
        optimizer.zero_grad()
        net(data(step)).square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in net.parameters()])
        optimizer.step()
    return gradients


def alone_unevenly(net: nn.Module, steps: Sequence[int], by_all: bool) -> list[list[Tensor]]:
    """Do in one process what ranks of so many steps do: those that still have data add up their gradients.

    Args:
        net: The model.
        steps: Of each rank.
        by_all: Divide by the number of all ranks, else of those that still have data.
    """
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    gradients = []
    for step in range(max(steps)):
        ranks = [rank for rank, count in enumerate(steps) if step < count]
        optimizer.zero_grad()
        for rank in ranks:
            loss = net(batch(step, rank)).square().mean()
            (loss / (len(steps) if by_all else len(ranks))).backward()
        gradients.append([parameter.grad.clone() for parameter in net.parameters()])
        optimizer.step()
    return gradients


def check_many_numbers_in_join() -> None:
    """Sums of one number, as of metrics, between a forward and its backward."""
    net = DistributedDataParallel(nn.Linear(4, 4))
    inputs = torch.full((2, 4), float(dist.get_rank() + 1))
    with net.join(divide_by_initial_world_size=False):
        for _ in range(2):
            loss = net(inputs).sum()
            for _ in range(100):
                one = torch.ones(1)
                dist.all_reduce(one, async_op=True).wait()
                assert one.item() == dist.get_world_size()
            loss.backward()


def check_join() -> None:
    steps = [3 + 2 * rank for rank in range(dist.get_world_size())]
    mine = steps[dist.get_rank()]
    for by_all in (True, False):
        expected = model()
        wanted = alone_unevenly(expected, steps, by_all)[:mine]
        for is_method in (True, False):
            net = DistributedDataParallel(model())
            joining = (
                net.join(divide_by_initial_world_size=by_all)
                if is_method
                else Join([net], divide_by_initial_world_size=by_all)
            )
            with joining:
                found = train_unevenly(net, part, mine)
            for step, (got, want) in enumerate(zip(found, wanted, strict=True)):
                torch.testing.assert_close(
                    got, want, rtol=0, atol=1e-9, msg=lambda text, step=step: f"step {step}: {text}"
                )
            # Those who ran out of data have the model of those who went on.
            close(net.module, expected)


def check_hooks() -> None:
    expected = model()
    train(expected, whole)
    net = DistributedDataParallel(model(), bucket_cap_mb=0.001)
    net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(net, part)
    close(net.module, expected, atol=2e-3)
    net = DistributedDataParallel(model(), bucket_cap_mb=0.001)
    net.register_comm_hook(dist.group.WORLD, default_hooks.allreduce_hook)
    train(net, part)
    close(net.module, expected)
    # Several buckets and callbacks that communicate: their order must not depend on timing.
    torch.manual_seed(5)
    net = DistributedDataParallel(model().float(), bucket_cap_mb=0.001)
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(12):
        optimizer.zero_grad()
        loss = net(part(step % 2).float()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    for parameter in net.parameters():
        copies = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
        dist.all_gather(copies, parameter.detach())
        assert all(torch.equal(copies[0], copy) for copy in copies)


def check_buffers_and_sync_batch_norm() -> None:
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).double())
    for step in range(3):
        net(part(step)).sum().backward()
    dist.barrier()


def ddp() -> None:
    for check in (
        check_options,
        check_unused_parameters,
        check_no_sync,
        check_join,
        check_many_numbers_in_join,
        check_hooks,
        check_buffers_and_sync_batch_norm,
    ):
        check()
        print(check.__name__, "passed")


def test_ddp() -> None:
    run(ddp, 2)


def test_ddp_on_three_ranks() -> None:
    run(ddp, 3)
