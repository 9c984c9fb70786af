"""Each link works alone, and any link may stand between SMP's and the optimizer of the script."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from pipeline_models import Chain, differences, made, only_x, rows, square_loss
from torch import nn
from torch_spawn import run

from smdp.torch.optimizers.optimizer_link import OptimizerLink
from smdp.torch.precision.precision_optimizer import PrecisionOptimizer


class Doubled(OptimizerLink):
    """A link that steps twice as far, and sees which parameters leave the rank."""

    kept: tuple[int, int] = (0, 0)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        for group in self.param_groups:
            torch._foreach_mul_([each.grad for each in group["params"]], 2.0)
        return super().step(closure)

    def keep_parameters(self, kept: Mapping[nn.Parameter, nn.Parameter]) -> None:
        before = sum(len(group["params"]) for group in self.param_groups)
        super().keep_parameters(kept)
        self.kept = (before, sum(len(group["params"]) for group in self.param_groups))


def test_a_link_works_alone() -> None:
    model = nn.Linear(2, 1, bias=False)
    nn.init.ones_(model.weight)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    link = PrecisionOptimizer(sgd)
    assert isinstance(link, torch.optim.Optimizer) and link.optimizer is sgd and not link.overflow
    calls: list[object] = []
    link.register_step_post_hook(lambda optimizer, args, kwargs: calls.append(optimizer))
    scheduler = torch.optim.lr_scheduler.StepLR(link, 1, 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(model(torch.tensor([3.0, 4.0]))).backward()
    scaler.unscale_(link)
    assert link.clip_master_grads(1.0).item() == 5.0
    scaler.step(link)
    scheduler.step()
    torch.testing.assert_close(model.weight.data, torch.tensor([[1 - 0.6, 1 - 0.8]]))
    assert calls == [sgd] and sgd.param_groups[0]["lr"] == 0.1
    link.zero_grad()
    assert model.weight.grad is None
    assert link.step(lambda: 7.0) == 7.0
    other = PrecisionOptimizer(torch.optim.SGD(model.parameters(), lr=3.0))
    other.load_state_dict(link.state_dict())
    assert other.param_groups[0]["lr"] == 0.1
    assert torch.equal(
        other.state[model.weight]["momentum_buffer"], sgd.state[model.weight]["momentum_buffer"]
    )


def a_link_under_smp() -> None:
    import smdp.torch.model_parallel as smp

    smp.init({"partitions": 2, "microbatches": 4})
    steps = rows(3)
    alone = made(Chain)
    plain = torch.optim.SGD(alone.parameters(), lr=0.2)
    for batch in steps:
        plain.zero_grad()
        for index in range(4):
            part = {name: item.chunk(4)[index] for name, item in batch.items()}
            (square_loss(only_x(alone, part), part) / 4).backward()
        plain.step()

    model = smp.DistributedModel(made(Chain))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.0)
    own = Doubled(sgd)
    optimizer = smp.DistributedOptimizer(own)
    assert isinstance(optimizer.inner, PrecisionOptimizer) and optimizer.inner.inner is own
    assert optimizer.optimizer is sgd

    @smp.step
    def train(model: Any, batch: Any) -> None:
        model.backward(square_loss(model(batch["x"]), batch))

    for batch in steps:
        optimizer.zero_grad()
        train(model, batch)
        optimizer.step()
    assert all(far < 1e-6 for far in differences(model, alone).values())
    mine = len(list(model.parameters()))
    assert own.kept == (len(list(alone.parameters())), mine) and 0 < mine < own.kept[0]
    assert optimizer.state_dict() == plain.state_dict() | {
        "param_groups": [plain.state_dict()["param_groups"][0] | {"lr": 0.1}]
    }


def test_a_link_stands_between_smp_and_the_optimizer_of_the_script() -> None:
    run(a_link_under_smp)
