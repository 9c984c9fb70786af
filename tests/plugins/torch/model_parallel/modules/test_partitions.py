"""Partitions by hand in any order: what runs later may lie on an earlier partition, or come back to one."""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from pipeline_models import WIDTH, adam, differences, made, only_x, rows, square_loss, train_alone
from torch import Tensor, nn
from torch_spawn import run

import smdp.torch.model_parallel as smp

STEPS = rows(3, 16)
MICROBATCHES = 4


class Model(nn.Module):
    """The shape of a GPT, with a skip over all layers: a norm and a head run last."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        first = hidden = self.embedding(x)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        return self.head(self.norm(hidden + first))  # type: ignore[no-any-return]


@smp.step
def train_step(model: Any, x: Tensor, y: Tensor) -> Tensor:
    loss = square_loss(model(x), {"y": y})
    model.backward(loss)
    return loss


@smp.step
def look(model: Any, x: Tensor) -> Tensor:
    return model(x)  # type: ignore[no-any-return]


def placed(order: list[int], *, tied: bool = False, **options: Any) -> tuple[Any, Any]:
    """Puts the four layers on partitions; all else lies on default_partition 0."""
    partitions = max(order) + 1
    smp.init(
        {
            "partitions": partitions,
            "microbatches": MICROBATCHES,
            "ddp": True,
            "auto_partition": False,
            "default_partition": 0,
            **options,
        }
    )
    torch.manual_seed(0)
    model = smp.DistributedModel(Model(tied=tied))
    for layer, partition in zip(model.get_module().layers, order, strict=True):
        smp.set_partition(layer, partition)
    return model, smp.DistributedOptimizer(adam(model))


def train(model: Any, optimizer: Any, steps: list[dict[str, Tensor]]) -> None:
    for batch in steps:
        mine = {name: value.chunk(smp.dp_size())[smp.dp_rank()] for name, value in batch.items()}
        optimizer.zero_grad()
        train_step(model, mine["x"], mine["y"])
        optimizer.step()


def any_order() -> None:
    world = torch.distributed.get_world_size()
    orders = {2: [[0, 0, 1, 1], [1, 0, 1, 0], [1, 1, 1, 0]], 3: [[1, 2, 0, 1]], 4: [[0, 1, 1, 1]]}[world]
    replicas = 2 if world == 4 else 1
    for tied in (False, True):
        alone = made(functools.partial(Model, tied=tied))
        train_alone(alone, STEPS, MICROBATCHES * replicas, square_loss, only_x)
        for order in orders:
            for pipeline in ("interleaved", "simple"):
                model, optimizer = placed(order, tied=tied, pipeline=pipeline)
                train(model, optimizer, STEPS)
                # The fewest stages: a further one only where the partition changes.
                runs = [0, *order, 0]
                expected = [p for i, p in enumerate(runs) if i == 0 or p != runs[i - 1]]
                assert model.partition_ranks == expected, (order, model.partition_ranks)
                assert [model.get_module_partition(f"layers.{i}") for i in range(4)] == order
                assert model.get_module_partition("head") == 0
                far = differences(model, alone)
                # Gradients of replicas, and of a weight's uses on several stages, add in another order.
                is_near = all(value < 5e-5 for value in far.values())
                assert is_near if tied or replicas > 1 else far == {}, (order, far)
                own = {name for name, _ in model.local_named_parameters()}
                mine = {f"layers.{i}.weight" for i, place in enumerate(order) if place == smp.pp_rank()}
                assert {name for name in own if name.startswith("layers") and "weight" in name} == mine
                assert ("norm.weight" in own) == (smp.pp_rank() == 0)
                if not tied and replicas == 1:
                    whole = model.state_dict()
                    assert all(torch.equal(whole[name], value) for name, value in alone.state_dict().items())
                with torch.no_grad():
                    model.eval()
                    found = look(model, STEPS[0]["x"]).concat()
                    parts = STEPS[0]["x"].chunk(MICROBATCHES)
                    assert torch.allclose(found, torch.cat([alone(part) for part in parts]), atol=1e-5)
                smp.shutdown()


def from_a_file() -> None:
    """A partition that one job has written is that of the next, whatever its own choice would be."""
    path = Path(os.environ["SMDP_TEST_FOLDER"], "partition.json")
    keys = {"partitions": 2, "microbatches": MICROBATCHES, "ddp": True, "skip_tracing": True}
    found = []
    for more in (
        {"auto_partition": False, "default_partition": 0, "partition_file": str(path)},
        {"partition_file": str(path), "load_partition": True},
    ):
        smp.init({**keys, **more})
        model = smp.DistributedModel(made(Model))
        smp.set_partition(model.get_module().layers[0], 1)
        train_step(model, STEPS[0]["x"], STEPS[0]["y"])
        found.append(model.partition)
        smp.barrier()
        smp.shutdown()
    assert found[0] == found[1] and found[0]["layers.0"] == 1
    smp.init({**keys, "partition_file": str(path.with_name("missing")), "load_partition": True})
    model = smp.DistributedModel(made(Model))
    with pytest.raises(ValueError, match="run once with load_partition = False"):
        train_step(model, STEPS[0]["x"], STEPS[0]["y"])
    smp.shutdown()
    with pytest.raises((ValueError, RuntimeError), match="nowhere is not a folder"):
        smp.init({**keys, "partition_file": str(path.with_name("nowhere") / "partition.json")})


def test_a_partition_from_a_file(tmp_path: Path) -> None:
    run(from_a_file, 2, env={"SMDP_TEST_FOLDER": str(tmp_path)})


@pytest.mark.parametrize("ranks", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_any_order(ranks: int) -> None:
    run(any_order, ranks)


def own_placements_of_schedules() -> None:
    alone = made(Model)
    train_alone(alone, STEPS, MICROBATCHES, square_loss, only_x)
    # Stages on ranks 0, 1, 1, 0 are a V, and 0, 1, 0, 1 a loop, if somebody puts norm and head there.
    model, optimizer = placed([1, 1, 1, 0], schedule="zb_v")
    with pytest.raises(ValueError, match="schedule 'zb_v' cannot have virtual stages on ranks 0, 1, 0"):
        train(model, optimizer, STEPS)
    smp.shutdown()
    model, optimizer = placed([1, 0, 0, 0], schedule="interleaved_1f1b")
    for module in (model.get_module().norm, model.get_module().head):
        smp.set_partition(module, 1)
    train(model, optimizer, STEPS)
    assert model.partition_ranks == [0, 1, 0, 1] and differences(model, alone) == {}
    smp.shutdown()


def test_own_placements_of_schedules() -> None:
    run(own_placements_of_schedules)


def resumed() -> None:
    alone = made(Model)
    train_alone(alone, STEPS, MICROBATCHES, square_loss, only_x)
    told = [tempfile.mkdtemp() if torch.distributed.get_rank() == 0 else ""]
    torch.distributed.broadcast_object_list(told)
    folder = Path(told[0])
    order = [0, 1, 0, 1]
    model, optimizer = placed(order)
    train(model, optimizer, STEPS[:2])
    smp.save_checkpoint(folder, "two", model=model, optimizer=optimizer)
    part, optimizer_part = model.local_state_dict(), optimizer.local_state_dict()
    smp.shutdown()

    # The checkpoint fixes the partition, also where modules are put elsewhere now.
    for now in (order, [1, 1, 0, 0]):
        model, optimizer = placed(now)
        smp.resume_from_checkpoint(folder, "two")
        train(model, optimizer, STEPS[2:])
        assert model.partition_ranks == [0, 1, 0, 1, 0] and differences(model, alone) == {}, now
        smp.shutdown()
    # Parts load by their names wherever the model is cut.
    model, optimizer = placed([1, 1, 0, 0])
    model.load_state_dict(part)
    optimizer.load_state_dict(optimizer_part)
    train(model, optimizer, STEPS[2:])
    assert model.partition_ranks == [0, 1, 0] and differences(model, alone) == {}
    smp.shutdown()


def test_resumed() -> None:
    run(resumed)
