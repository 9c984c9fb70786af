"""What tensor_parallel() requires of its arguments and of the job, checked before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parameter import is_lazy

from smdp._shown import counted, shown
from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.mesh.cuts import cut_of
from smdp.torch.mesh.parallel_mesh import ParallelMesh

_WRAPPERS = {
    "DistributedDataParallel": "Divide the model first, then wrap it in DistributedDataParallel.",
    "DataParallel": "Divide the model first; smdp.torch.DistributedDataParallel replaces DataParallel.",
    "FullyShardedDataParallel": "Divide the model first, and use smdp's ShardedOptimizer for its states.",
    "ShardedDataParallel": "Divide the model first, then wrap it in ShardedDataParallel.",
    "OptimizedModule": "Divide the model first, then call torch.compile().",
    "ScriptModule": "Divide the model before torch.jit sees it.",
    "PipelinedModule": "Divide the model first, then call pipeline().",
}


def check_model(model: Any) -> None:
    """Checks that a model is whole, and that nothing has been built on its parameters yet.

    Raises:
        TypeError: It is not a module.
        ValueError: It has been divided, wrapped, compiled or sharded.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"[smdp] tensor_parallel: model = {shown(model)} is not a torch.nn.Module. Pass the model itself."
        )
    for name, module in model.named_modules():
        for kind in type(module).__mro__:
            if kind.__name__ in _WRAPPERS:
                what = f"module {name!r}" if name else "the model"
                raise ValueError(
                    f"[smdp] tensor_parallel: {what} is a {kind.__name__}, which has prepared whole"
                    f" parameters. {_WRAPPERS[kind.__name__]}"
                )
    for name, parameter in model.named_parameters():
        if cut_of(parameter) is not None:
            raise ValueError(
                "[smdp] tensor_parallel: this model has already been divided: its parameter"
                f" {name!r} is a slice. Build a new model."
            )
        if is_lazy(parameter):
            raise ValueError(
                f"[smdp] tensor_parallel: parameter {name!r} has no shape yet. Call the model once first."
            )
        if type(parameter).__name__ == "DTensor":
            raise ValueError(
                f"[smdp] tensor_parallel: parameter {name!r} is a DTensor, as of fully_shard() or"
                " parallelize_module(). Divide a model of plain parameters, and use smdp's ShardedOptimizer"
                " for its states."
            )


def check_degree(degree: Any) -> None:
    """Checks that a degree is a number of ranks.

    Raises:
        ValueError: It is not.
    """
    if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
        raise ValueError(
            f"[smdp] tensor_parallel: degree = {shown(degree)} is not valid; allowed: an integer of at"
            " least 1"
        )


def check_ranks(degree: int, mesh: ParallelMesh | None) -> None:
    """Checks that the ranks of the job can be divided into groups of `degree`. Collective.

    Raises:
        ValueError: torch.distributed is not initialized, or the mesh or the world has other sizes.
        RuntimeError: Another rank raised such an error.
    """
    if dist.is_initialized():
        on_every_rank(lambda: _check_ranks(degree, mesh))
    else:
        _check_ranks(degree, mesh)


def _check_ranks(degree: int, mesh: ParallelMesh | None) -> None:
    check_degree(degree)
    if not dist.is_initialized():
        raise ValueError(
            "[smdp] tensor_parallel() needs torch.distributed. Call"
            f' dist.init_process_group("smdp") first, and start {counted(degree, "process")}, for example'
            f" with `smdp run -n {degree} script.py`."
        )
    if mesh is not None and mesh.placement.tensor != degree:
        raise ValueError(
            f"[smdp] tensor_parallel: degree = {degree}, but the mesh has"
            f" {counted(mesh.placement.tensor, 'rank')} along its tensor axis. Pass the same number to both."
        )
    world = dist.get_world_size()
    if world % degree != 0:
        fits = ", ".join(str(number) for number in range(1, world + 1) if world % number == 0)
        raise ValueError(
            f"[smdp] tensor_parallel: degree = {degree} is not valid in a world of {counted(world, 'rank')}."
            f" Start a multiple of {counted(degree, 'rank')}, or use one of: {fits}."
        )


def check_plan(plan: Any) -> None:
    """Checks the type of a plan.

    Raises:
        ValueError: It is neither "auto" nor a mapping.
    """
    if plan != "auto" if isinstance(plan, str) else not isinstance(plan, Mapping):
        raise ValueError(
            f'[smdp] tensor_parallel: plan = {shown(plan)} is not valid; allowed: "auto", or a dict such as'
            ' {"layers.*.up": "colwise", "layers.*.down": "rowwise"}'
        )


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all parameters, by which ranks compare their models."""
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def check_same(ranks: Sequence[tuple[str, Mapping[str, tuple[int, ...]]]]) -> None:
    """Checks that all ranks divide the same model in the same way.

    Args:
        ranks: The plan and the shapes of the parameters of each rank.

    Raises:
        ValueError: A rank differs from rank 0.
    """
    first, shapes = ranks[0]
    for rank, (plan, own) in enumerate(ranks):
        if plan != first:
            raise ValueError(
                f"[smdp] tensor_parallel: rank {rank} has another plan than rank 0. Pass the same model,"
                f" degree and plan on all ranks. Rank 0:\n{first}\nRank {rank}:\n{plan}"
            )
        for name in sorted(shapes.keys() | own.keys()):
            if own.get(name) != shapes.get(name):
                raise ValueError(
                    f"[smdp] tensor_parallel: parameter {name!r} has shape {shapes.get(name)} on rank 0, and"
                    f" {own.get(name)} on rank {rank}. Pass the same model on all ranks."
                )
