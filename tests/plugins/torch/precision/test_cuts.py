"""Parameters that are cut into slices and shards have the norm of whole ones; all ranks see an overflow."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pipeline_models import Chain, made
from torch import Tensor, nn
from torch_spawn import run

from smdp.torch.mesh.cuts import Cut, mark_cut
from smdp.torch.mesh.parallel_mesh import Axis, ParallelMesh


def with_gradients(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return model


def keep_part(parameter: Tensor, gradient: Tensor, axis: Axis, mesh: ParallelMesh) -> None:
    """Leaves this rank its part of a parameter, and of its gradient."""
    ranks = mesh.ranks(axis)
    mine = slice(ranks.index(mesh.rank), None, len(ranks))
    parameter.grad = None
    parameter.data = parameter.data[mine].clone()
    parameter.grad = gradient[mine].clone()
    mark_cut(parameter, Cut(axis, mesh))


def cut_pipeline(tp: int, axes: dict[str, Axis]) -> Any:
    """Returns a pipeline of two stages with gradients, of which some parameters are cut."""
    from smdp.torch.pipelining.pipelined.split_over_ranks import SplitOptions, split_over_ranks

    whole = dict(with_gradients(made(Chain)).named_parameters())
    mesh = ParallelMesh.of_world(pp=2, tp=tp)
    mesh.make("tp")
    pipe = split_over_ranks(made(Chain), mesh, SplitOptions(stages=2, microbatches=2, schedule="1f1b"), None)
    for name, parameter in pipe.named_parameters():
        gradient = whole[name].grad
        assert gradient is not None
        axis = axes.get(name.split(".")[-1])
        if axis is None:
            parameter.grad = gradient
        else:
            keep_part(parameter, gradient, axis, mesh)
    return pipe


def norms_of_parts() -> None:
    import smdp.torch

    for tp, axis in ((2, "tp"), (1, "rdp"), (1, "dp")):
        for order in (2.0, 1.0, math.inf):
            alone = with_gradients(made(Chain))
            expected = nn.utils.clip_grad_norm_(alone.parameters(), 0.5, order)
            pipe = cut_pipeline(tp, {"weight": axis})  # type: ignore[dict-item]
            found = smdp.torch.clip_grad_norm_(pipe, 0.5, order)
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
            whole = dict(alone.named_parameters())
            for name, parameter in pipe.named_parameters():
                if parameter.shape == whole[name].shape:
                    torch.testing.assert_close(parameter.grad, whole[name].grad)

    # Without a pipeline, and with a part that is empty.
    mesh = ParallelMesh.of_world(tp=4)
    alone, sliced = with_gradients(made(lambda: nn.Linear(8, 3))), made(lambda: nn.Linear(8, 3))
    expected = nn.utils.clip_grad_norm_(alone.parameters(), 1e9)
    for parameter, other in zip(sliced.parameters(), alone.parameters(), strict=True):
        keep_part(parameter, other.grad, "tp", mesh)  # type: ignore[arg-type]
    torch.testing.assert_close(smdp.torch.clip_grad_norm_(sliced, 1e9), expected)
    with pytest.raises(ValueError, match=r"cannot be cut over axis 'pp'\. Use one of: tp, rdp, dp"):
        Cut("pp", mesh)


def an_overflow_in_a_part() -> None:
    import smdp.torch

    for tp, axis in ((2, "tp"), (1, "rdp")):
        pipe = cut_pipeline(tp, {"weight": axis})  # type: ignore[dict-item]
        optimizer = torch.optim.SGD(pipe.parameters(), lr=1.0)
        scaler = smdp.torch.GradScaler(pipe, init_scale=4.0)
        before = [parameter.detach().clone() for parameter in pipe.parameters()]
        if dist.get_rank() == 3:
            next(iter(pipe.parameters())).grad[0, 0] = math.inf
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 2.0
        assert all(map(torch.equal, before, pipe.parameters()))


def parts() -> None:
    norms_of_parts()
    an_overflow_in_a_part()


def test_parts_count_as_the_whole() -> None:
    run(parts, 4)
