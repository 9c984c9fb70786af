"""A training script with tensor parallelism, as SMP's guide prints it, beside one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_spawn import run

import smdp.torch.model_parallel as smp

STEPS, BATCH = 3, 4


class Net(nn.Module):
    """The network of the guide's MNIST script, with fewer pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, 1)
        self.conv2 = nn.Conv2d(4, 8, 3, 1)
        self.fc1 = nn.Linear(32, 16)
        self.fc2 = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = torch.flatten(F.max_pool2d(x, 2), 1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), 1)


def data(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return (
        torch.randn(BATCH, 1, 8, 8, generator=generator),
        torch.randint(10, (BATCH,), generator=generator),
    )


def alone(model: nn.Module, ranks: int, rate: float = 0.5) -> list[float]:
    """Trains in one process on the batches of all ranks; returns the loss of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for step in range(STEPS):
        batches = [data(step, rank) for rank in range(ranks)]
        optimizer.zero_grad()
        loss = F.nll_loss(model(torch.cat([x for x, _ in batches])), torch.cat([y for _, y in batches]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def mean_of(loss: Tensor) -> float:
    losses: list[float] = smp.allgather(loss.item(), smp.DP_GROUP)
    return sum(losses) / len(losses)


def same_state(model: Any, expected: nn.Module) -> None:
    found = model.state_dict()
    assert list(found) == list(expected.state_dict())
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)


def trained_like_the_guide() -> None:
    smp.init({"tensor_parallel_degree": 2, "ddp": True, "partitions": 1})
    torch.manual_seed(1)
    expected = Net()
    losses = alone(expected, smp.dp_size())
    torch.manual_seed(1 + smp.dp_rank())  # as the guide does; rank 0's values count
    model = Net()
    smp.set_tensor_parallelism(model.fc1, True)
    model = smp.DistributedModel(model)
    assert type(model.module.fc1) is smp.nn.DistributedLinear and type(model.module.fc2) is nn.Linear
    assert model.get_module().fc1.weight.shape == (16, 16)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    for step in range(STEPS):
        x, y = data(step, smp.dp_rank())
        optimizer.zero_grad()
        loss = F.nll_loss(model(x), y)
        loss.backward()
        optimizer.step()
        assert abs(mean_of(loss) - losses[step]) < 1e-5
    same_state(model, expected)


def test_trained_like_the_guide() -> None:
    run(trained_like_the_guide)


class Mixed(nn.Module):
    """Distributed modules before and after plain ones, with a weight of each class."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 8, padding_idx=0)
        self.inner = nn.Sequential(
            nn.Linear(8, 12), nn.GELU(), nn.LayerNorm(12), nn.Linear(12, 8, bias=False)
        )
        self.outer = nn.Linear(8, 6)

    def forward(self, ids: Tensor) -> Tensor:
        return self.outer(self.inner(self.words(ids)).mean(1))


MICROBATCHES = 2


def mixed_data(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(12, (4, 3), generator=generator), torch.randint(6, (4,), generator=generator)


def mixed_alone(model: nn.Module, sources: int) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, eps=1e-3)
    losses = []
    for step in range(STEPS):
        batches = [mixed_data(step, rank) for rank in range(sources)]
        ids, target = (torch.cat([batch[each] for batch in batches]) for each in (0, 1))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids), target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses


def trained_with_stages(**more: Any) -> None:
    smp.init({"tensor_parallel_degree": 2, "ddp": True, "microbatches": MICROBATCHES, **more})
    is_prescaled = smp.state.cfg.prescaled_batch
    torch.manual_seed(1)
    expected = Mixed()
    losses = mixed_alone(expected, smp.rdp_size() if is_prescaled else smp.dp_size())
    torch.manual_seed(1)
    with smp.tensor_parallelism():
        model = Mixed()
    smp.set_tensor_parallelism(model.outer, enabled=False)
    model = smp.DistributedModel(model)
    assert len(list(model.distributed_modules())) == 3
    optimizer = smp.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1, eps=1e-3))

    @smp.step
    def train(ids: Tensor, target: Tensor) -> Tensor:
        loss = F.cross_entropy(model(ids), target)
        model.backward(loss)
        return loss

    for step in range(STEPS):
        batch = mixed_data(step, smp.rdp_rank() if is_prescaled else smp.dp_rank())
        optimizer.zero_grad()
        loss = train(*batch).reduce_mean()
        optimizer.clip_master_grads(0.5)
        optimizer.step()
        assert abs(mean_of(loss) - losses[step]) < 1e-5
    same_state(model, expected)
    kinds = {name: model.is_distributed_parameter(each) for name, each in model.local_named_parameters()}
    assert all(
        is_cut == (name in ("words.weight", "inner.0.weight", "inner.3.weight"))
        for name, is_cut in kinds.items()
    )
    smp.shutdown()


def one_stage() -> None:
    trained_with_stages()


def one_stage_prescaled() -> None:
    trained_with_stages(prescaled_batch=True)


def two_stages() -> None:
    trained_with_stages(partitions=2)


def every_placement() -> None:
    for strategy in ("cluster", "spread", "DTP", "TDP", "PDT", "PTD"):
        trained_with_stages(partitions=2, placement_strategy=strategy)
    trained_with_stages(partitions=2, prescaled_batch=True)


def test_one_stage() -> None:
    run(one_stage, 4)


def test_one_stage_prescaled() -> None:
    run(one_stage_prescaled, 2)


def test_two_stages() -> None:
    run(two_stages, 4)


@pytest.mark.slow
def test_every_placement() -> None:
    run(every_placement, 8)
