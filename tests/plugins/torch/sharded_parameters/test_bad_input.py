"""What `ShardedDataParallel` refuses, with the reason and the cure, before it changes the model."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from block_models import Model
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch_spawn import run

from smdp import MismatchError
from smdp.torch import (
    DistributedDataParallel,
    MixedPrecision,
    ShardedDataParallel,
    ShardedOptimizer,
    lower_precision,
    pipeline,
    tensor_parallel,
)
from smdp.torch.sharded_parameters.gathered_states import GatheredStates
from smdp.torch.sharded_parameters.shard_groups import chosen_degree


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ([[0, 1, 2, 3]], 4),
        ([[0, 1], [2, 3]], 2),
        ([[0], [1]], 2),
        ([[0, 1], [2]], 3),
        ([[0, 2], [1, 3]], 4),
    ],
)
def test_default_degree(hosts: list[list[int]], expected: int) -> None:
    assert chosen_degree(None, hosts) == expected


def _refused(text: str, call: Callable[[], Any], error: type[Exception] = ValueError) -> None:
    with pytest.raises(error, match="(?s)^" + re.escape("[smdp]") + ".*" + text):
        call()


class Wrong(Model):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(3 + dist.get_rank(), 2)


def check_bad_input() -> None:
    model = Model()
    before = {name: id(one) for name, one in model.named_parameters()}

    def wrap(**options: Any) -> Callable[[], Any]:
        return lambda: ShardedDataParallel(model, **options)

    _refused("degree = 3 does not divide 2 ranks.*Use one of: 1, 2; or None", wrap(degree=3))
    _refused("compression is not supported: shards travel uncompressed", wrap(compression="bf16"))
    _refused("pass unused_parameters=True", wrap(find_unused_parameters=True))
    _refused("unexpected argument 'dgree'", wrap(dgree=2), TypeError)
    _refused("max_live_parameters = -1", wrap(max_live_parameters=-1))
    _refused("backward_passes = 0", wrap(backward_passes=0))
    _refused("dtype = .*float16 needs a loss scale", wrap(dtype=torch.float16))
    _refused("clip = 0", wrap(clip=0))
    _refused("not a module inside the model", wrap(units=[nn.Linear(2, 2)]))
    _refused("'blocks' is a ModuleList, which is never called", wrap(units=[model.blocks]))
    _refused("unit 'blocks.0' contains unit 'blocks.0.up'", wrap(units=[model.blocks[0], model.blocks[0].up]))
    _refused("needs a group of the backend 'smdp'", wrap(process_group=dist.new_group(backend="gloo")))
    _refused("got a Parameter", lambda: ShardedDataParallel(model.start), TypeError)
    _refused(
        "rank 0 has persistence_threshold = 0 where rank 1 has",
        wrap(persistence_threshold=dist.get_rank()),
        MismatchError,
    )
    _refused(
        r"rank 0 has 'extra.weight' float32\[2, 3\] where rank 1",
        lambda: ShardedDataParallel(Wrong()),
        MismatchError,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _refused("already has an optimizer .SGD., but is replaced.*Create the optimizer afterwards", wrap())
    del optimizer
    _refused(
        "the model is a DistributedDataParallel",
        lambda: ShardedDataParallel(DistributedDataParallel(Model())),
    )
    _refused("a FSDPModule: pass the model before", lambda: ShardedDataParallel(fully_shard(nn.Linear(2, 2))))
    assert before == {name: id(one) for name, one in model.named_parameters()}

    sharded = ShardedDataParallel(model)
    _refused("is wrapped already", lambda: ShardedDataParallel(sharded))
    _refused("is wrapped already", lambda: ShardedDataParallel(nn.Sequential(sharded)))
    _refused("the model is sharded by an earlier Trainer", lambda: ShardedDataParallel(sharded.module))
    _refused("averages its gradients itself", lambda: DistributedDataParallel(sharded))
    _refused("wrapped in ShardedDataParallel; .*ShardedOptimizer shards", lambda: pipeline(sharded))
    _refused("Divide the model first", lambda: tensor_parallel(sharded, 2))
    _refused(
        "the model is a ShardedDataParallel, whose optimizer has this rank's shard",
        lambda: ShardedOptimizer(torch.optim.SGD(sharded.parameters(), lr=0.1), sharded),
    )
    own = list(sharded.parameters())
    _refused("Adafactor cannot update.*such as SGD", lambda: GatheredStates(torch.optim.Adafactor(own)))
    for kind in (torch.optim.AdamW, torch.optim.SGD):
        GatheredStates(kind(own))
    GatheredStates(torch.optim.Muon([one for one in own if one.dim() == 2]))
    instead = r"float32 shards are the masters.*ShardedDataParallel\(model, dtype=torch.bfloat16\)"
    plain = torch.optim.SGD(sharded.parameters(), lr=0.1)
    for each in (sharded, sharded.module):
        _refused(instead, lambda each=each: MixedPrecision(plain, each))
        _refused(instead, lambda each=each: lower_precision(each))
    _refused("Leave out lower_precision.*dtype=", lambda: ShardedDataParallel(lower_precision(Model())))
    _refused("has no join\\(\\)", sharded.join)
    _refused("cannot be copied", lambda: copy.deepcopy(sharded), TypeError)
    pipe = pipeline(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    _refused("each rank already keeps only its own stages", lambda: ShardedDataParallel(pipe))


def test_bad_input() -> None:
    run(check_bad_input, 2)
