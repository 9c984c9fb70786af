"""`ShardedDataParallel` trains to the parameters of one process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from block_models import WORDS, Model, difference, loss_of, mean_loss, whole
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer
from torch_spawn import run

from smdp.torch import (
    DistributedDataParallel,
    MixedPrecision,
    ShardedDataParallel,
    clip_grad_norm_,
    delayed_initialization,
    lower_precision,
    offload_activations,
)
from smdp.torch.sharded_parameters.fsdp_groups import groups_of

Maker = Callable[[Iterable[Parameter]], Optimizer]
Change = Callable[[Model], Any]


def adamw(parameters: Iterable[Parameter]) -> Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, foreach=True)


def sgd(parameters: Iterable[Parameter]) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def nothing(model: Model) -> None:
    pass


def remember(model: Model) -> None:
    model.around = True
    model.blocks[1].remembers = True


def freeze(model: Model) -> None:
    model.blocks[0].requires_grad_(False)
    model.norm.weight.requires_grad_(False)


def offload(model: Model) -> None:
    offload_activations(model, f"disk:{tempfile.gettempdir()}", 1, least_bytes=1)


def two_dtypes(model: Model) -> None:
    model.blocks[1].norm.double()
    model.blocks[2].double()
    model.norm.double()
    model.head = nn.Linear(16, WORDS, dtype=torch.double)


def trained(
    degree: int | None, change: Change = nothing, optimizer: Maker = adamw, steps: int = 20, **options: Any
) -> tuple[ShardedDataParallel, Model]:
    """Trains a model in shards and one process with the same batches, and returns both."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(rank)  # the first rank's values count
    inner = Model()
    change(inner)
    torch.manual_seed(0)
    expected = Model()
    change(expected)
    model = ShardedDataParallel(inner, degree, **options)
    evaluate(model)
    ours, theirs = optimizer(model.parameters()), optimizer(expected.parameters())
    passes = options.get("backward_passes", 1)
    for step in range(steps):
        for one in range(passes):
            loss_of(model, passes * step + one, rank).backward()
            mean_loss(expected, passes * step + one, ranks).backward()
        if (clip := options.get("clip")) is not None:
            torch.nn.utils.clip_grad_norm_(expected.parameters(), clip)
        evaluate(model)
        for each in (ours, theirs):
            each.step()
            each.zero_grad()
    return model, expected


def evaluate(model: ShardedDataParallel) -> None:
    """Runs a forward that no backward follows, and that leaves shards."""
    model.eval()
    with torch.no_grad():
        loss_of(model, 0, 0)
    model.train()


def check_ways() -> None:
    half = dist.get_world_size() // 2
    for degree, change, optimizer, options in (
        (None, nothing, sgd, {}),
        (None, offload, sgd, {}),
        (half, nothing, adamw, {"persistence_threshold": 65, "clip": 0.5}),
        (half, remember, sgd, {"backward_passes": 2, "max_live_parameters": 0}),
        (None, freeze, sgd, {"reshard_after_forward": False}),
        (half, two_dtypes, sgd, {"persistence_threshold": 20}),
    ):
        model, expected = trained(degree, change, optimizer, **options)
        assert difference(model.module, expected) < 1e-5, (degree, change, optimizer, options)
    assert float(model.module.seen) > 0


def check_bits() -> None:
    """Two runs, and the replicas of each, have the same bits."""
    first, _ = trained(2, steps=3, persistence_threshold=65)
    second, _ = trained(2, steps=3, persistence_threshold=65)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one.to_local(), other.to_local())
        copies = [torch.empty_like(whole(one)) for _ in range(dist.get_world_size())]
        dist.all_gather(copies, whole(one).contiguous())
        assert all(torch.equal(copies[0], each) for each in copies)
        parts = 2 if one.numel() >= 65 and one.shape[0] % 2 == 0 else 1
        assert one.to_local().numel() * parts == one.numel(), one.shape


def check_clipping() -> None:
    """`clip_grad_norm_` returns one process's norm, for gradients that ranks hold whole and in shards."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    expected = Model()
    torch.manual_seed(0)
    model = ShardedDataParallel(Model(), 2, persistence_threshold=65)
    for order in (2.0, float("inf"), 1.0):
        for each in (model, expected):
            each.zero_grad()
        with model.no_sync():
            loss_of(model, 1, rank).backward()
        loss_of(model, 2, rank).backward()
        for step in (1, 2):
            mean_loss(expected, step, ranks).backward()
        norm = clip_grad_norm_(model, 0.1, order)
        torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.1, order))
        for one, other in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(whole(one.grad), other.grad, atol=1e-6, rtol=1e-5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.no_sync():
        loss_of(model, 3, rank).backward()
    with pytest.raises(RuntimeError, match=r"\[smdp\] optimizer.step\(\) was called before the replicas"):
        optimizer.step()


def check_models_without_memory() -> None:
    torch.manual_seed(3)
    expected = Model()
    torch.manual_seed(3)
    with delayed_initialization():
        inner = Model()
    model = ShardedDataParallel(inner, persistence_threshold=20)
    assert difference(model.module, expected) == 0
    assert inner.head.weight is inner.embedding.weight
    assert all(not one.is_meta for one in (*model.parameters(), *model.buffers()))
    state = {name: value + 1 for name, value in expected.state_dict().items()}
    inner.load_state_dict(state)
    expected.load_state_dict(state)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(loss_of(model, 0, 0), loss_of(expected, 0, 0))
    assert difference(model.module, expected) == 0


def check_bfloat16() -> None:
    """Units compute in bfloat16. Shards, gradients and state stay float32, as MixedPrecision's masters."""
    model, expected = trained(2, optimizer=sgd, steps=4, dtype=torch.bfloat16)
    assert 0 < difference(model.module, expected) < 0.02
    torch.manual_seed(0)
    lowered = DistributedDataParallel(lower_precision(Model()))
    optimizer = MixedPrecision(sgd(lowered.parameters()), lowered)
    for step in range(4):
        optimizer.backward(loss_of(lowered, step, dist.get_rank()))
        optimizer.step()
        optimizer.zero_grad()
    for one, other in zip(model.parameters(), lowered.parameters(), strict=True):
        torch.testing.assert_close(whole(one), optimizer.master_of(other).detach(), atol=0.01, rtol=0.01)
    loss_of(model, 0, 0).backward()
    assert {one.grad.dtype for one in model.parameters() if one.grad is not None} == {torch.float32}


def check_live_limit() -> None:
    """The next block is gathered ahead if the limit allows it, and not otherwise."""
    sizes = [sum(one.numel() for one in part.parameters()) for part in (Model(), Model().blocks[0])]
    whole_at_once = sizes[0] - sizes[1]  # all but one of the three blocks
    for limit in (whole_at_once - 1, whole_at_once):
        model = ShardedDataParallel(Model(), max_live_parameters=limit)
        found: list[bool] = []
        group = groups_of([model.module.blocks[1]])[0]

        def look(*unused: Any, group: Any = group, found: list[bool] = found) -> None:
            found.append(group._all_gather_result is not None)

        model.module.blocks[0].register_forward_pre_hook(look)
        for step in range(2):
            loss_of(model, step, dist.get_rank()).backward()
        assert found == [limit == whole_at_once] * 2


class Half(nn.Module):
    """Ranks use different parameters of its unit."""

    def __init__(self) -> None:
        super().__init__()
        self.often, self.seldom = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, values: Tensor) -> Tensor:
        used: Tensor = self.often(values) if dist.get_rank() else self.seldom(self.often(values))
        return used


def check_unused_parameters() -> None:
    torch.manual_seed(0)
    model = ShardedDataParallel(Half(), unused_parameters=True)
    model(torch.ones(2, 4)).sum().backward()
    grads = [whole(one.grad) for one in model.module.seldom.parameters() if one.grad is not None]
    assert len(grads) == 2
    torch.testing.assert_close(grads[1], torch.full((4,), 2.0 / dist.get_world_size()))


@pytest.mark.slow
def test_on_two_ranks() -> None:
    run(check_ways, 2)


def test_on_four_ranks() -> None:
    run(check_ways, 4)


def test_bits_and_clipping() -> None:
    run(check_the_rest, 4)


def check_the_rest() -> None:
    check_bits()
    check_clipping()
    check_models_without_memory()
    check_bfloat16()
    check_live_limit()
    check_unused_parameters()
