"""Shards of slices: `tensor_parallel()` inside `ShardedDataParallel`."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch
import torch.distributed as dist
from divided_models import PLAN, VOCABULARY, Model, loss_of, own_part
from torch import Tensor
from torch_spawn import run

from smdp.torch import DistributedDataParallel, ShardedDataParallel, clip_grad_norm_, tensor_parallel
from smdp.torch.checkpoints import checkpoint


def tokens(step: int, replica: int) -> Tensor:
    return torch.randint(VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(10 * step + replica))


def made() -> Model:
    torch.manual_seed(0)
    return Model(tied=True, key_heads=2)


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    # AdamW would enlarge the rounding of gradients that are zero, such as those of the biases of keys.
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def farthest(model: torch.nn.Module, alone: torch.nn.Module) -> float:
    expected = dict(alone.named_parameters())
    found = 0.0
    for name, one in model.named_parameters():
        slices: Tensor = one.full_tensor().detach()  # type: ignore[operator]
        found = max(found, float((slices - own_part(expected[name].detach(), one)).abs().max()))
    return found


def check_slices() -> None:
    told: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = told.append  # type: ignore[method-assign]
    logging.getLogger("smdp.torch").addHandler(handler)
    replica = dist.get_rank() // 2  # ranks with different slices are neighbors
    alone, model = made(), ShardedDataParallel(tensor_parallel(made(), 2, PLAN), 2, persistence_threshold=17)
    optimizers = [sgd(each) for each in (alone, model)]
    for step in range(4):
        torch.stack([loss_of(alone, tokens(step, each)) for each in range(2)]).mean().backward()
        loss_of(model, tokens(step, replica)).backward()
        norm = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
        torch.testing.assert_close(clip_grad_norm_(model, 0.5), norm)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert farthest(model.module, alone) < 1e-5
    assert not any("have become different" in each.getMessage() for each in told)
    folder = Path(os.environ["SMDP_TEST_FOLDER"]) / "slices"
    checkpoint.save(folder, model, optimizers[1])
    plain = DistributedDataParallel(made())
    again = sgd(plain)
    checkpoint.load(folder, plain, again)
    for one, other in zip(plain.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
        states = (each.state[key]["momentum_buffer"] for each, key in ((again, one), (optimizers[0], other)))
        torch.testing.assert_close(*states, atol=1e-5, rtol=0)
    back = ShardedDataParallel(tensor_parallel(made(), 2, PLAN), 1)
    checkpoint.load(folder, back, sgd(back))
    assert farthest(back.module, alone) < 1e-5


def test_slices(tmp_path: Path) -> None:
    run(check_slices, 4, env={"SMDP_TEST_FOLDER": str(tmp_path)})
