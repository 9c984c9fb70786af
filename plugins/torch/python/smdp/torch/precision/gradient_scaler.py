"""A loss scaler for fp16 that keeps all stages in agreement."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from smdp.torch.mesh.cuts import axes_of_cuts
from smdp.torch.mesh.parallel_mesh import Axis, ParallelMesh
from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule


class GradScaler(torch.amp.GradScaler):
    """Scales the loss of a pipelined model. An overflow on one stage skips the step on all stages.

    This is a `torch.amp.GradScaler`. Pass it to `train_step(..., scaler=...)` of the pipelined module.

    Args:
        pipe: The result of `smdp.torch.pipeline()`.
        device: The device type of the gradients.
        **kwargs: The keyword arguments of torch's class.
    """

    def __init__(self, pipe: PipelinedModule, device: str = "cpu", **kwargs: Any) -> None:
        super().__init__(device, **kwargs)
        self._pipe = pipe
        if self.is_enabled():
            # torch does this when it scales a loss, but only one stage has a loss.
            self._lazy_init_scale_growth_tracker(pipe.device)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides gradients by the scale, and combines the overflow flags of all stages and parts."""
        super().unscale_(optimizer)
        if not self.is_enabled():
            return
        mesh, axes, device = self._holders(optimizer)
        if not axes:
            return
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
    ) -> tuple[ParallelMesh, tuple[Axis, ...], torch.device]:
        """Returns the mesh, the axes over which the gradients are distributed, and their device here."""
        return self._pipe.mesh, (*axes_of_optimizer(optimizer), "pp"), self._pipe.device


def axes_of_optimizer(optimizer: torch.optim.Optimizer) -> tuple[Axis, ...]:
    """Returns the axes over which any parameter of an optimizer is cut."""
    return axes_of_cuts(parameter for group in optimizer.param_groups for parameter in group["params"])
