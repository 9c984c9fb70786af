"""`smdp.accelerate.DataParallel(shard_parameters=...)`: trains, saves and resumes as without it."""

from __future__ import annotations

import os
from typing import Any

import language_model as lm
import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import (
    DataLoaderConfiguration,
    DDPCommunicationHookType,
    DistributedDataParallelKwargs,
    InitProcessGroupKwargs,
)
from safetensors.torch import load_file
from test_accelerate_sharded_optimizer import Loop
from transformers_spawn import run

from smdp.accelerate import DataParallel
from smdp.torch import ShardedDataParallel


def same(loop: Any, other: Any, told: Any, others: Any) -> None:
    assert told[0] == pytest.approx(others[0], rel=1e-5) and told[1] == others[1]
    weights = other.whole()
    for name, one in loop.whole().items():
        assert torch.allclose(one, weights[name], atol=1e-5), name


def looped() -> None:
    folder = os.environ["SMDP_TEST_FOLDER"]
    whole, sharded = Loop(), Loop(shard_parameters=True, recompute="each")
    assert isinstance(sharded.model, ShardedDataParallel)
    for loop, name in ((whole, "whole"), (sharded, "sharded")):
        loop.train(0, 2)
        loop.accelerator.save_state(os.path.join(folder, name))
    expected = whole.train(2, 4)
    same(sharded, whole, sharded.train(2, 4), expected)
    sharded.accelerator.save_model(sharded.model, folder)
    weights = sharded.whole()
    if sharded.accelerator.is_main_process:
        saved = load_file(os.path.join(folder, "model.safetensors"))
        assert all(torch.equal(one, weights[name]) for name, one in saved.items()) and saved

    for saved, options in (("whole", {"shard_parameters": 2}), ("sharded", {})):
        loop = Loop(seed=1, **options)
        loop.accelerator.load_state(os.path.join(folder, saved))
        same(loop, whole, loop.train(2, 4), expected)

    backend = InitProcessGroupKwargs(backend="smdp")
    uneven = {"dataloader_config": DataLoaderConfiguration(even_batches=False)}
    for words, of_ddp, others in (
        ("comm_hook='bf16'", {"comm_hook": DDPCommunicationHookType.BF16}, {}),
        ("bucket_cap_mb=4", {"bucket_cap_mb": 4}, {}),
        ("static_graph=True", {"static_graph": True}, {}),
        ("even_batches=False", {}, uneven),
    ):
        handlers = [backend, DistributedDataParallelKwargs(**of_ddp)]
        accelerator = Accelerator(cpu=True, kwargs_handlers=handlers, **others)
        with pytest.raises(ValueError, match=f"shard_parameters and {words} cannot be used together"):
            DataParallel(shard_parameters=True).apply(accelerator)

    model = lm.model()
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(ValueError, match=r"already has an optimizer \(AdamW\)"):
        sharded.accelerator.prepare(model)
    model(**{key: one[None] for key, one in lm.rows(1)[0].items()}).loss.backward()
    optimizer.step()
    with pytest.raises(ValueError, match="shard_parameters: AdamW has made steps with the whole parameters"):
        sharded.accelerator.prepare(model, optimizer)
    del optimizer
    prepared, optimizer = sharded.accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    assert {id(one) for one in optimizer.param_groups[0]["params"]} == {
        id(one) for one in prepared.parameters()
    }


def test_trains_and_resumes_like_whole_parameters() -> None:
    run(looped, 2)
