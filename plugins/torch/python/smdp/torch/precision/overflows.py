"""Looks for infinite and NaN gradients, and agrees with the ranks that hold other parts of the model."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from smdp.torch.mesh.cuts import mesh_of_slices
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule
from smdp.torch.sharding.sharded_gradient import ShardedGradient
from smdp.torch.sharding.sharded_optimizer import ShardedOptimizer


class Agreement:
    """The ranks that train a model together, on all axes of its mesh.

    All ranks create it together.

    Args:
        model: The model, wrapped or not. A model without a wrapper, slices or stages is trained by this rank
            alone, or has gradients that its ranks average before they are looked at.
        sharded: The optimizer, if it is sharded. Each of its ranks looks at its own pieces.
    """

    def __init__(self, model: nn.Module, sharded: ShardedOptimizer | None = None) -> None:
        self._mesh: ParallelMesh | None
        if isinstance(model, PipelinedModule):
            self._mesh, self._device = model.mesh, model.device
        else:
            self._mesh = mesh_of_slices(model.parameters())
            self._device = next((each.device for each in model.parameters()), torch.device("cpu"))
        self._group: dist.ProcessGroup | None = None
        if self._mesh is not None:
            self._mesh.make_for_steps("world")
        else:
            self._group = getattr(model, "process_group", None)
        self._owners = sharded if self._mesh is None and self._group is None else None

    def any(self, *flags: bool) -> list[bool]:
        """Returns whether each flag is set on any of the ranks. Collective."""
        if self._owners is not None:  # the model itself does not say that it is wrapped
            return [not self._owners.agree(not flag) for flag in flags]
        group = self._group if self._mesh is None else self._mesh.step_group("world")
        if group is None or dist.get_world_size(group) == 1:
            return list(flags)
        told = torch.tensor(flags, dtype=torch.uint8, device=self._device)
        dist.all_reduce(told, dist.ReduceOp.MAX, group=group)
        return [bool(each) for each in told.tolist()]


def has_overflow(parameters: Iterable[Tensor]) -> bool:
    """Returns whether this rank has gradients, or pieces of them, with an infinite or NaN element."""
    found = [_extremes(values) for parameter in parameters for values in _own_values(parameter.grad)]
    return bool(found) and not bool(torch.isfinite(torch.stack(found)).all())


def _own_values(gradient: Tensor | None) -> list[Tensor]:
    if gradient is None:
        return []
    if isinstance(gradient, DTensor):
        values = [gradient.to_local()]
    elif isinstance(gradient, ShardedGradient):
        values = gradient.averaged("a look for overflows")
    else:
        values = [gradient._values() if gradient.is_sparse else gradient]
    return [each for each in values if each.numel()]


def _extremes(values: Tensor) -> Tensor:
    """Returns the smallest and the largest value, both NaN if any is. It is the fastest pass over 16 bits."""
    return torch.stack(torch.aminmax(values.detach())).float()
