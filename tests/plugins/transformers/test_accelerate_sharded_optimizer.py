"""`smdp.accelerate.DataParallel(shard_optimizer=...)`: trains, saves and resumes as without it."""

from __future__ import annotations

import os
from typing import Any

import language_model as lm
import pytest
import torch
from torch.distributed.tensor import DTensor
from transformers_spawn import run

from smdp.torch import DistributedDataParallel, ShardedOptimizer


class Loop:
    """A script's loop, with what `prepare()` has returned."""

    def __init__(self, shard_optimizer: bool | str = False, seed: int = 0, **options: Any) -> None:
        from accelerate import Accelerator
        from accelerate.utils import InitProcessGroupKwargs

        from smdp.accelerate import DataParallel

        self.accelerator = Accelerator(
            cpu=True,
            gradient_accumulation_steps=2,
            kwargs_handlers=[InitProcessGroupKwargs(backend="smdp")],
        )
        given = options or {"bucket_cap_mb": 1, "shard_optimizer": shard_optimizer}
        DataParallel(**given).apply(self.accelerator)
        model = lm.model()
        if seed:
            torch.manual_seed(seed)
            torch.nn.init.normal_(model.transformer.wpe.weight)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(model, optimizer, scheduler)

    def train(self, begin: int, end: int) -> list[Any]:
        norms = []
        for step in range(begin, end):
            for row in lm.rows(2, 4 * step + 2 * self.accelerator.process_index):
                with self.accelerator.accumulate(self.model):
                    batch = {key: value[None] for key, value in row.items()}
                    self.accelerator.backward(self.model(**batch).loss)
                    if self.accelerator.sync_gradients:
                        clipped = self.accelerator.clip_grad_norm_(self.model.parameters(), 0.5)
                        norms.append(clipped.item())
                    self.optimizer.step()
                    self.scheduler.step()
                    self.optimizer.zero_grad()
        return [
            norms,
            self.scheduler.get_last_lr(),
            lm.weights_hash(self.accelerator.unwrap_model(self.model)),
        ]

    def whole(self) -> dict[str, torch.Tensor]:
        """The weights, gathered from shards if there are any."""
        state = self.accelerator.unwrap_model(self.model).state_dict()
        return {key: one.full_tensor() if isinstance(one, DTensor) else one for key, one in state.items()}


def looped() -> None:
    folder = os.environ["SMDP_TEST_FOLDER"]
    ways = {"whole": False, "sharded": True, "host": "host"}
    ends: dict[str, Any] = {}
    for name, shard_optimizer in ways.items():
        loop = Loop(shard_optimizer)
        assert isinstance(loop.model, DistributedDataParallel)
        assert isinstance(loop.optimizer.optimizer, ShardedOptimizer) == bool(shard_optimizer)
        begun = loop.train(0, 2)
        loop.accelerator.save_state(os.path.join(folder, name))
        ends[name] = [begun, loop.train(2, 4)]
        assert ends[name] == ends["whole"]
    kept = loop.optimizer.state.values()
    held = sum(value.nbytes for state in kept for key, value in state.items() if key != "step")
    assert held <= 0.51 * 8 * sum(one.numel() for one in loop.model.parameters())
    loop.optimizer.optimizer.consolidate(to=1)  # after a checkpoint that rank 0 has written
    if loop.accelerator.process_index == 1:
        assert loop.optimizer.state_dict()["state"]

    for name, shard_optimizer in (("whole", True), ("sharded", False), ("sharded", "host")):
        loop = Loop(shard_optimizer, seed=1)
        loop.accelerator.load_state(os.path.join(folder, name))
        assert loop.train(2, 4) == ends["whole"][1], (name, shard_optimizer)

    model = lm.model()
    with pytest.raises(ValueError, match=r"AdamW belong to no model .* prepare\(model, optimizer\)"):
        loop.accelerator.prepare(torch.optim.AdamW(model.parameters()), model)
    with pytest.raises(
        RuntimeError, match=r"distributed over the ranks\. Call optimizer\.consolidate\(to=0\)"
    ):
        loop.optimizer.state_dict()


def over_gloo() -> None:
    from accelerate import Accelerator

    from smdp.accelerate import DataParallel

    accelerator = Accelerator(cpu=True)
    with pytest.raises(ValueError, match="the Accelerator's backend is 'gloo'; it must be 'smdp'"):
        DataParallel(shard_optimizer=True).apply(accelerator)


def test_trains_and_resumes_like_an_unsharded_optimizer() -> None:
    run(looped, 2)


def test_another_backend_is_refused() -> None:
    run(over_gloo, 2)
