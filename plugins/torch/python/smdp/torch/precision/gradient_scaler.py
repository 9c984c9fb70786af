"""A loss scaler for fp16 that keeps all stages and slices of a model in agreement."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from smdp.torch.mesh.cuts import axes_of_cuts, mesh_of_slices
from smdp.torch.mesh.parallel_mesh import Axis, ParallelMesh
from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule


class GradScaler(torch.amp.GradScaler):
    """Scales the loss of a model in stages or slices. An overflow in one of them skips the step on all ranks.

    This is a `torch.amp.GradScaler`. Pass it to `train_step(..., scaler=...)` of a pipelined module.

    Args:
        pipe: The result of `smdp.torch.pipeline()` or `smdp.torch.tensor_parallel()`, also if it is wrapped.
        device: The device type of the gradients.
        **kwargs: The keyword arguments of torch's class.
    """

    def __init__(self, pipe: nn.Module, device: str = "cpu", **kwargs: Any) -> None:
        super().__init__(device, **kwargs)
        self._pipe = pipe
        if self.is_enabled() and isinstance(pipe, PipelinedModule):
            # torch does this when it scales a loss, but only one stage has a loss.
            self._lazy_init_scale_growth_tracker(pipe.device)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides gradients by the scale, and combines the overflow flags of all stages and parts."""
        super().unscale_(optimizer)
        if not self.is_enabled():
            return
        holders = self._holders(optimizer)
        if holders is None or not holders[1]:
            return
        mesh, axes, device = holders
        found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        if not found:  # a stage without gradients
            found[device] = torch.zeros((), device=device)
        for flag in found.values():
            total = flag.reshape(1).to(device)
            for axis in axes:
                dist.all_reduce(total, op=dist.ReduceOp.MAX, group=mesh.step_group(axis))
            flag.copy_(total.reshape(flag.shape))

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Steps the optimizer unless a stage has an overflow. Unscales the gradients first if necessary."""
        if self.is_enabled() and not self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]:
            self.unscale_(optimizer)
        result: float | None = super().step(optimizer, *args, **kwargs)
        return result

    def _holders(
        self, optimizer: torch.optim.Optimizer
    ) -> tuple[ParallelMesh, tuple[Axis, ...], torch.device] | None:
        """Returns the mesh, the axes over which the gradients are distributed, and their device here."""
        axes, pipe = axes_of_optimizer(optimizer), self._pipe
        if isinstance(pipe, PipelinedModule):
            return pipe.mesh, (*axes, "pp"), pipe.device
        mesh = mesh_of_slices(pipe.parameters())
        if mesh is None:
            return None
        # An optimizer on one rank may have only parameters that are whole.
        return mesh, axes or ("tp",), next(pipe.parameters()).device


def axes_of_optimizer(optimizer: torch.optim.Optimizer) -> tuple[Axis, ...]:
    """Returns the axes over which any parameter of an optimizer is cut."""
    return axes_of_cuts(parameter for group in optimizer.param_groups for parameter in group["params"])
