"""Wrong arguments of tensor_parallel() are errors that say what would do, before anything is changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from divided_models import PLAN, Model
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrizations import weight_norm
from torch_spawn import run

import smdp.torch
from smdp.torch.mesh.parallel_mesh import ParallelMesh

PAIR = {"0": "colwise", "2": "rowwise"}


def mlp(width: int = 8, **replaced: nn.Module) -> nn.Sequential:
    """Two linear layers; `two` and `zero` replace them."""
    first, last = nn.Linear(4, width), nn.Linear(width, 4)
    return nn.Sequential(replaced.get("zero", first), nn.GELU(), replaced.get("two", last))


@contextlib.contextmanager
def refused(model: Any, *words: str, kind: type[Exception] = ValueError) -> Iterator[None]:
    """Expects an error with all of these words, and a model as it was before."""
    modules = [type(module) for module in model.modules()]
    before = [(parameter, parameter.detach().clone()) for parameter in model.parameters()]
    with pytest.raises(kind) as caught:
        yield
    text = str(caught.value)
    assert text.startswith("[smdp] "), text
    assert [word for word in words if word not in text] == [], text
    assert [type(module) for module in model.modules()] == modules
    after = list(model.parameters())
    assert len(after) == len(before)
    for found, (parameter, values) in zip(after, before, strict=True):
        assert found is parameter and torch.equal(found, values) and not hasattr(found, "_smdp_cut")


def refuse(model: Any, plan: Any, *words: str, degree: Any = 2, **options: Any) -> None:
    with refused(model, *words, **options):
        smdp.torch.tensor_parallel(model, degree, plan)


class OwnForward(nn.Linear):
    """A layer whose forward() differs from that of Linear, as quantized layers have it."""

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return super().forward(tensor) * 2


class Sliced(nn.Parameter):
    """Stands for the tensor subclasses of quantization."""


def plans() -> None:
    model = Model()
    refuse(model, {"blocks.*.upp": "colwise"}, "'blocks.*.upp'", "matches no module", "'blocks.*.up'")
    both = {"blocks.*.up": "colwise", "blocks.0.*": "colwise"}
    refuse(model, both, "'blocks.0.up' matches two patterns", "'blocks.0.*'")
    refuse(model, {"blocks.*.up": "colwize"}, "Did you mean 'colwise'", "rowwise")
    refuse(model, [("blocks.*.up", "colwise")], 'allowed: "auto", or a dict')
    refuse(model, "Auto", 'allowed: "auto", or a dict')
    refuse(nn.Bilinear(2, 2, 2), "auto", "no plan for Bilinear")


def layers() -> None:
    refuse(mlp(width=9), PAIR, "module '0'", "9 outputs", "Degrees that fit: 3, 9.")
    heads = Model()
    for block in heads.blocks:
        block.head_dim = 16
    refuse(heads, PLAN, "module 'blocks.0.out'", "16 inputs: 1 head cannot be divided", "No degree fits")
    for block in heads.blocks:
        block.head_dim = 3
    refuse(mlp(two=OwnForward(8, 4)), PAIR, "module '2'", "OwnForward has another forward() than Linear")
    replaced = nn.Linear(8, 4)
    replaced.forward = OwnForward(8, 4).forward  # type: ignore[method-assign]
    refuse(mlp(two=replaced), PAIR, "module '2'", "a Linear has another forward() than Linear")
    refuse(mlp(two=weight_norm(nn.Linear(8, 4))), PAIR, "its weight is computed from other parameters")
    special = nn.Linear(8, 4)
    special.weight = Sliced(special.weight.data)
    refuse(mlp(two=special), PAIR, "its weight is a Sliced")
    refuse(mlp(), {"1": "colwise"}, "a GELU is not a linear layer")
    for word in ("embedding_rowwise", "embedding_colwise"):
        for option, problem in (
            ({"max_norm": 1.0}, "max_norm needs whole rows"),
            ({"scale_grad_by_freq": True}, "scale_grad_by_freq counts tokens"),
            ({"sparse": True}, "its gradient is sparse"),
        ):
            refuse(nn.Sequential(nn.Embedding(8, 4, **option)), {"0": word}, "module '0'", problem)
    attention = nn.MultiheadAttention(8, 2)
    refuse(attention, {"out_proj": "rowwise"}, "the attention around it reads its weight")
    quantized = torch.ao.quantization.quantize_dynamic(mlp(), {nn.Linear})
    refuse(quantized, PAIR, "module '0'", "is not a linear layer")


def ties() -> None:
    tied = Model(tied=True)
    only_one = {name: word for name, word in PLAN.items() if name != "head"}
    refuse(tied, only_one, "'embedding' and 'head' share parameter 'embedding.weight'", "whole")
    refuse(tied, {**PLAN, "embedding": "embedding_colwise"}, "'embedding' and 'head'", "columns / 2")
    layers = mlp(4)
    layers[2].weight = layers[0].weight
    refuse(layers, PAIR, "'0' and '2' share parameter '0.weight'")


def wrapped() -> None:
    model = mlp()
    refuse(DistributedDataParallel(model), PAIR, "DistributedDataParallel", "Divide the model first")
    refuse(smdp.torch.DistributedDataParallel(model), PAIR, "DistributedDataParallel", "then wrap it")
    refuse(torch.compile(model), PAIR, "OptimizedModule", "then call torch.compile()")
    refuse(nn.Sequential(torch.compile(mlp())), {"0": "colwise"}, "module '0' is a OptimizedModule")
    refuse(nn.DataParallel(model), PAIR, "DataParallel")
    with refused(model, "is not a torch.nn.Module", kind=TypeError):
        smdp.torch.tensor_parallel(lambda: model, 2)  # type: ignore[type-var]
    from torch.distributed.fsdp import fully_shard

    sharded = mlp()
    fully_shard(sharded, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (2,)))
    with pytest.raises(ValueError, match=r"parameter '0.weight' is a DTensor"):
        smdp.torch.tensor_parallel(sharded, 2, PAIR)
    with pytest.raises(ValueError, match=r"parameter '0.weight' has no shape yet. Call the model once"):
        smdp.torch.tensor_parallel(mlp(zero=nn.LazyLinear(8)), 2, PAIR)
    divided = smdp.torch.tensor_parallel(mlp(), 2, PAIR)
    shape = divided[0].weight.shape
    with pytest.raises(ValueError, match=r"already been divided.*'0.weight'"):
        smdp.torch.tensor_parallel(divided, 2, PAIR)
    assert divided[0].weight.shape == shape == (4, 4)
    around = DistributedDataParallel(nn.Sequential(divided))
    with pytest.raises(RuntimeError, match=r"over ranks \[0, 1\].*smdp.torch.DistributedDataParallel"):
        around(torch.ones(1, 4))


def degrees() -> None:
    model = mlp()
    for degree in (0, -1, 2.0, True, "2", None):
        refuse(model, PAIR, "degree", "an integer of at least 1", degree=degree)
    refuse(model, PAIR, "degree = 4 is not valid in a world of 2 ranks", "multiple of 4 ranks", degree=4)
    with refused(model, "degree = 2, but the mesh has 1 rank along its tensor axis"):
        smdp.torch.tensor_parallel(model, 2, PAIR, mesh=ParallelMesh.of_world())
    for plan in (PAIR, "auto"):
        kinds, weights = [type(module) for module in model.modules()], list(model.parameters())
        for is_sequence in (False, True):
            assert smdp.torch.tensor_parallel(model, 1, plan, sequence_parallel=is_sequence) is model
        assert [type(module) for module in model.modules()] == kinds
        assert all(a is b and a.shape == b.shape for a, b in zip(weights, model.parameters(), strict=True))
    refuse(model, {"nothing": "colwise"}, "matches no module", degree=1)


def ranks_that_differ() -> None:
    rank = dist.get_rank()
    refuse(mlp(), {"0": "colwise_gather_output"} if rank else PAIR, "rank 1 has another plan than rank 0")
    join = {"0": "colwise_gather_output"}
    refuse(mlp(16 if rank else 8), join, "'0.bias' has shape (8,) on rank 0, and (16,) on rank 1")
    refuse(mlp(), PAIR, "rank 1 has another plan", "over 1 ranks", degree=1 if rank else 2)
    if rank:
        refuse(mlp(), PAIR, "degree = 3 is not valid in a world of 2 ranks", degree=3)
    else:
        refuse(mlp(), PAIR, "rank 1: tensor_parallel: degree = 3 is not valid", kind=RuntimeError)
    # A mistake on one rank only is an error of all, at once.
    kind, word = (
        (ValueError, "nothing") if rank else (RuntimeError, "rank 1: tensor_parallel: plan['nothing']")
    )
    refuse(mlp(), {"nothing": "colwise"} if rank else PAIR, word, kind=kind)


def all_of_them() -> None:
    plans()
    layers()
    ties()
    wrapped()
    degrees()
    ranks_that_differ()


def test_errors_of_a_job() -> None:
    run(all_of_them)


def test_a_degree_needs_a_job() -> None:
    model = mlp()
    refuse(model, PAIR, "tensor_parallel() needs torch.distributed", "smdp run -n 2")
    assert smdp.torch.tensor_parallel(model, 1, PAIR) is model
