"""Models with sparse gradients, under torch's DistributedDataParallel and smdp's, against one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel
from torch_spawn import run

import smdp
import smdp.torch
from smdp.torch import DistributedDataParallel
from smdp.torch.data_parallel.sparse_gradients import SparseGradients, sparse_parameters

ROWS, WIDTH = 50, 4


class Net(nn.Module):
    """Two tables with sparse gradients, of which one is used on demand, and dense layers behind them."""

    def __init__(self, *, is_sparse: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH, sparse=is_sparse, padding_idx=0)
        self.bag = nn.EmbeddingBag(ROWS, WIDTH, sparse=is_sparse)
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, rows: Tensor, use: bool = True) -> Tensor:
        found = self.table(rows).sum(1)
        if use:
            found = found + self.bag(rows)
        return self.last(torch.tanh(found))


def model(*, is_sparse: bool = True) -> Net:
    torch.manual_seed(1)
    return Net(is_sparse=is_sparse).double()


def batch(number: int) -> Tensor:
    return torch.randint(0, ROWS, (6, 3), generator=torch.Generator().manual_seed(number))


def loss_of(net: nn.Module, rows: Tensor, use: bool = True) -> Tensor:
    loss: Tensor = net(rows, use).square().mean()
    return loss


def compare(net: Net, alone: Net) -> None:
    """Compares the gradients with those of a model with dense ones."""
    for (name, one), (_, other) in zip(net.named_parameters(), alone.named_parameters(), strict=True):
        is_sparse = name.startswith(("table", "bag"))
        if one.grad is None:
            assert other.grad is None, name
            continue
        assert one.grad.is_sparse == is_sparse, name
        assert not is_sparse or one.grad.is_coalesced()
        torch.testing.assert_close(one.grad.to_dense(), other.grad)


def means(alone: Net, batches: list[tuple[int, bool]]) -> None:
    """Gives a model in one process the gradients of all ranks' batches."""
    alone.zero_grad()
    for number, use in batches:
        (loss_of(alone, batch(number), use) / dist.get_world_size()).backward()


def check_training() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for wrap in (
        TorchDistributedDataParallel,
        DistributedDataParallel,
        lambda net: DistributedDataParallel(net, static_graph=True),
        lambda net: DistributedDataParallel(net, compression="fp16"),
    ):
        net, alone = model(), model(is_sparse=False)
        ddp = wrap(net)
        tables = [net.table.weight, net.bag.weight]
        optimizers = [torch.optim.SparseAdam(tables), torch.optim.SGD(net.last.parameters(), lr=0.1)]
        for step in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            alone.load_state_dict(net.state_dict())
            means(alone, [(10 * step + other, True) for other in range(size)])
            loss_of(ddp, batch(10 * step + rank)).backward()
            compare(net, alone)
            norm = smdp.torch.clip_grad_norm_(net.parameters(), 1e-3)
            torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(alone.parameters(), 1e-3))
            compare(net, alone)
            for optimizer in optimizers:
                optimizer.step()
        weights = torch.cat([one.detach().flatten() for one in net.parameters()])
        highest = weights.clone()
        dist.all_reduce(highest, op=dist.ReduceOp.MAX)
        assert torch.equal(weights, highest)


def check_unused() -> None:
    """A table that only rank 0 uses, then none does: with a gradient left over, and without."""
    rank, size = dist.get_rank(), dist.get_world_size()
    net, alone = model(), model(is_sparse=False)
    ddp = DistributedDataParallel(net, find_unused_parameters=True)
    loss_of(ddp, batch(rank), rank == 0).backward()
    means(alone, [(other, other == 0) for other in range(size)])
    compare(net, alone)
    assert net.bag.weight.grad is not None
    before = net.bag.weight.grad.clone()
    loss_of(ddp, batch(rank), False).backward()
    assert torch.equal(net.bag.weight.grad.to_dense(), before.to_dense())
    net.zero_grad()
    loss_of(ddp, batch(rank), False).backward()
    means(alone, [(other, False) for other in range(size)])
    compare(net, alone)


def check_accumulation() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for wrap in (TorchDistributedDataParallel, DistributedDataParallel):
        net, alone = model(), model(is_sparse=False)
        ddp = wrap(net)
        with ddp.no_sync():
            loss_of(ddp, batch(rank)).backward()
        loss_of(ddp, batch(10 + rank)).backward()
        means(alone, [(other + 10 * half, True) for other in range(size) for half in range(2)])
        compare(net, alone)


class Tied(nn.Module):
    """A table that is also the last layer's weight."""

    def __init__(self, *, is_sparse: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH, sparse=is_sparse)

    def forward(self, rows: Tensor, use: bool) -> Tensor:
        found = self.table(rows).sum(1)
        return found @ self.table.weight.t() if use else found


def check_dense_use() -> None:
    """A gradient that is dense on some rank is dense on all."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for is_used_by in (lambda rank: True, lambda rank: rank == 0, lambda rank: False):
        torch.manual_seed(1)
        net, alone = Tied(), Tied(is_sparse=False)
        alone.load_state_dict(net.state_dict())
        ddp = DistributedDataParallel(net)
        loss_of(ddp, batch(rank), is_used_by(rank)).backward()
        for other in range(size):
            (loss_of(alone, batch(other), is_used_by(other)) / size).backward()
        grad = net.table.weight.grad
        assert grad is not None
        assert grad.is_sparse != any(is_used_by(other) for other in range(size))
        torch.testing.assert_close(grad.to_dense(), alone.table.weight.grad)


def check_join() -> None:
    rank = dist.get_rank()
    found = []
    for wrap in (TorchDistributedDataParallel, DistributedDataParallel):
        net = model(is_sparse=wrap is DistributedDataParallel)
        ddp = wrap(net)
        with Join([ddp], divide_by_initial_world_size=False):
            for step in range(2 + rank):
                ddp.zero_grad()
                loss_of(ddp, batch(10 * step + rank)).backward()
                found.append([one.grad.to_dense() for one in net.parameters() if one.grad is not None])
    torch.testing.assert_close(found[: 2 + rank], found[2 + rank :])


def check_comm_hook() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    net, alone = model(), model(is_sparse=False)
    ddp = TorchDistributedDataParallel(net)
    ddp.register_comm_hook(None, smdp.torch.comm_hook("bf16"))
    for step in range(3):
        ddp.zero_grad()
        loss_of(ddp, batch(10 * step + rank)).backward()
        means(alone, [(10 * step + other, True) for other in range(size)])
        compare(net, alone)


def check_refusals() -> None:
    with pytest.raises(ValueError, match=r"topk_momentum is 0\.9, but some gradients are sparse"):
        DistributedDataParallel(model(), compression="topk", topk_momentum=0.9)
    ddp = DistributedDataParallel(model())
    with pytest.raises(ValueError, match="StepInForward cannot be used with sparse gradients"):
        smdp.torch.StepInForward(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1))

    class Functional(nn.Linear):
        sparse = True  # whatever it means there

        def forward(self, rows: Tensor) -> Tensor:
            return nn.functional.embedding(rows, self.weight, sparse=True)

    found = DistributedDataParallel(Functional(WIDTH, ROWS, bias=False))
    with pytest.raises(
        RuntimeError, match=r"'weight' is torch\.sparse_coo, but the parameter did not belong to"
    ):
        found(torch.tensor([1])).sum().backward()


def check_sparse_on_one_rank() -> None:
    with pytest.raises(smdp.MismatchError, match=r"float64\[50, 4\].* with sparse gradients on rank"):
        DistributedDataParallel(model(is_sparse=dist.get_rank() == 0))


def test_sparse_parameters_are_those_of_embeddings() -> None:
    net = nn.ModuleList([nn.Embedding(2, 2), nn.Embedding(2, 2, sparse=True), nn.Linear(2, 2)])
    net[2].sparse = True
    assert sparse_parameters(net) == {id(net[1].weight)}


class Interrupted:
    """Starts sums whose wait() is interrupted once."""

    def __init__(self) -> None:
        self.waits: list[str] = []
        self.reasons: list[str] = []

    def all_reduce_sparse(self, index: int, sum: object, /) -> Any:
        return self

    def or_over_ranks(self, flags: int, count: int, /) -> None:
        raise NotImplementedError

    def abort(self, reason: str, /) -> None:
        self.reasons.append(reason)

    def wait(self) -> None:
        self.waits.append("wait")
        if len(self.waits) == 1:
            raise KeyboardInterrupt


def test_interrupted_sum_keeps_what_the_core_reads() -> None:
    sums, gradients = Interrupted(), SparseGradients([0], [torch.zeros(2, 2)])
    gradients.send(sums)
    with pytest.raises(KeyboardInterrupt):
        gradients.take(0)
    assert sums.reasons == ["KeyboardInterrupt"]
    gradients.forget()
    assert len(sums.waits) == 2


@pytest.mark.parametrize(
    "check",
    [
        check_training,
        check_unused,
        check_accumulation,
        check_dense_use,
        check_join,
        check_comm_hook,
        check_refusals,
        check_sparse_on_one_rank,
    ],
    ids=lambda check: check.__name__,
)
def test_sparse_gradients(check: Callable[[], None]) -> None:
    run(check, 3 if check is check_training else 2)
