"""Random numbers depend on seed, step, microbatch and unit, not on the number of stages."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from pipeline_models import Chain, adam, made, rows, square_loss, train_pipeline
from torch import Tensor, nn
from torch.nn import functional
from torch_spawn import run


class Dropping(Chain):
    """Drops inside units, in glue on values of stages and on constants, and draws noise."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(layer, nn.Dropout(0.2)) for layer in self.layers)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(x)
        for layer in self.layers:
            x = functional.dropout(layer(x), 0.1, self.training)
            x = x + 0.01 * torch.randn_like(x) + 0.01 * torch.rand(x.shape)
        return self.head(x)


def trained_bits() -> None:
    import smdp.torch

    stages = dist.get_world_size()
    for schedule in ("1f1b", "gpipe") if stages > 2 else ("1f1b", "zb_1p"):
        pipe = smdp.torch.pipeline(
            made(Dropping), stages, 4, schedule, example_inputs=rows()[0], virtual_stages=1, seed=7
        )
        torch.manual_seed(100 + dist.get_rank())
        before = torch.get_rng_state()
        losses = train_pipeline(pipe, rows(2), square_loss)
        losses.append(pipe.eval_step(rows()[0], square_loss).item())
        assert torch.equal(torch.get_rng_state(), before)
        found = {
            name: parameter.detach().double().sum().item() for name, parameter in pipe.named_parameters()
        }
        everyone: list[dict[str, float]] = [{}] * stages
        dist.all_gather_object(everyone, found)
        if dist.get_rank() == 0:
            merged = {name: value for part in everyone for name, value in part.items()}
            print("bits", losses, sorted(merged.items()))


def bits_of(size: int) -> set[str]:
    lines = {line for line in run(trained_bits, size)[0].splitlines() if line.startswith("bits")}
    assert lines
    return lines


def test_dropout_has_the_same_bits_on_any_number_of_stages() -> None:
    assert len(bits_of(1) | bits_of(2) | bits_of(4)) == 1


def masks() -> None:
    import smdp.torch

    def mask(pipe: nn.Module, batch: dict[str, Tensor]) -> list[Tensor]:
        return list(pipe.train_step(batch, lambda output: (output.mean(), output == 0))[1])

    class Last(Chain):
        def forward(self, x: Tensor) -> Tensor:
            return functional.dropout(super().forward(x).expand(-1, 100), 0.5, self.training)

    pipe = smdp.torch.pipeline(made(Last), 2, 4, example_inputs=rows()[0], seed=1)
    optimizer = adam(pipe)
    first = mask(pipe, rows()[0])
    second = mask(pipe, rows()[0])
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1])
    optimizer.step()
    again = smdp.torch.pipeline(made(Last), 2, 4, example_inputs=rows()[0], seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first, mask(again, rows()[0]), strict=True))
    other = smdp.torch.pipeline(made(Last), 2, 4, example_inputs=rows()[0], seed=2)
    assert not torch.equal(first[0], mask(other, rows()[0])[0])
    again.eval()
    assert not any(bool(given.any()) for given in mask(again, rows()[0]))


class Marking(nn.Module):
    """Adds a bit of its own to each number: what its dropout has kept."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, hidden: Tensor) -> Tensor:
        kept = functional.dropout(torch.ones_like(hidden), 0.5, self.training) > 0
        return 2 * hidden + kept + self.scale


class Marked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Marking() for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.zeros_like(x)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def masks_of_units_and_replicas() -> None:
    """Units of one shape, microbatches and replicas draw differently."""
    import smdp.torch

    pipe = smdp.torch.pipeline(made(Marked), 2, 4, example_inputs=rows()[0])
    _, given = pipe.train_step(rows(1, 8)[0], lambda output: (output.mean(), output.detach()))
    found = []
    for output in given:
        bits = output.long()
        found += [tuple(((bits >> place) & 1).flatten().tolist()) for place in range(6)]
    everyone: list[list[Any]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, [pipe.layout.replica, found])
    by_replica = dict(everyone)
    assert len(by_replica) == dist.get_world_size() // 2
    masks = [mask for part in by_replica.values() for mask in part]
    assert len(set(masks)) == len(masks) == 24 * len(by_replica)


def test_units_microbatches_and_replicas_draw_differently() -> None:
    run(masks_of_units_and_replicas, 4)


def drawn_by_user_is_left_alone() -> None:
    """What the user draws between steps goes on as if there were no steps."""
    import smdp.torch

    pipe = smdp.torch.pipeline(made(Dropping), 2, 4, example_inputs=rows()[0])
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    found = []
    for _ in range(4):
        found.append(torch.rand(1))
        pipe.train_step(rows()[0], square_loss)
    assert torch.equal(torch.cat(found), expected)


def masks_and_user() -> None:
    masks()
    drawn_by_user_is_left_alone()


def test_another_step_another_mask_and_the_generator_as_it_was() -> None:
    run(masks_and_user, 2)


class Switched(Chain):
    """Dropout between layers, by a module, a number, or what the module does not know."""

    hidden: ClassVar[list[float]] = [0.0]

    def __init__(self) -> None:
        super().__init__(4)
        self.dropout = nn.Dropout(0)
        self.chance = 0.0

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = functional.dropout(self.dropout(layer(x)), self.chance, self.training)
        return self.head(functional.dropout(x, self.hidden[0], self.training))


def switched_bits() -> None:
    import smdp
    import smdp.torch

    stages = dist.get_world_size()
    pipe = smdp.torch.pipeline(made(Switched), stages, 4, example_inputs=rows()[0], seed=7)
    losses = []
    for module, chance in ((0, 0.0), (0.5, 0.0), (1, 0.0), (0.25, 0.0), (0, 0.5), (0.0, 0.0)):
        pipe.module.dropout.p, pipe.module.chance = module, chance
        losses += [pipe.train_step(rows()[0], square_loss).item() for _ in range(2)]
    assert losses[0] == losses[1] == losses[-1]
    assert len(set(losses)) == 8  # those without dropout, and those that drop everything, are equal
    if dist.get_rank() == 0:
        print("bits", losses)
    if stages == 2:
        Switched.hidden[0] = 0.5
        with pytest.raises(
            (RuntimeError, smdp.SmdpError), match="returns a new tensor, but returned its input"
        ):
            pipe.train_step(rows()[0], square_loss)


def test_dropout_is_switched_on_and_off() -> None:
    found = [[line for line in run(switched_bits, size)[0].splitlines() if "bits" in line] for size in (1, 2)]
    assert found[0] and found[0] == found[1]
