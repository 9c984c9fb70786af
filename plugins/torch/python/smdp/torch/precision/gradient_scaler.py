"""A loss scaler for fp16 on which all stages agree."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from smdp.torch.mesh.cuts import axes_of_cuts
from smdp.torch.mesh.parallel_mesh import Axis, ParallelMesh
from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler` for a pipelined model: an overflow on one stage skips the step on all.

    Args:
        pipe: What `smdp.torch.pipeline()` gave; give this scaler to its train_step(..., scaler=...).
        device: Where gradients are.
        **kwargs: As torch's.
    """

    def __init__(self, pipe: PipelinedModule, device: str = "cpu", **kwargs: Any) -> None:
        super().__init__(device, **kwargs)
        self._pipe = pipe
        if self.is_enabled():
            # torch does it where a loss is scaled: only one stage has one.
            self._lazy_init_scale_growth_tracker(pipe.device)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide gradients by the scale, and let all stages and parts know of an overflow."""
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
        """Step unless a stage has an overflow; unscales first, where that has not been done."""
        if self.is_enabled() and not self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]:
            self.unscale_(optimizer)
        result: float | None = super().step(optimizer, *args, **kwargs)
        return result

    def _holders(
        self, optimizer: torch.optim.Optimizer
    ) -> tuple[ParallelMesh, tuple[Axis, ...], torch.device]:
        """Returns over which axes of a mesh the gradients of the model lie, and the device of this rank's."""
        return self._pipe.mesh, (*axes_of_optimizer(optimizer), "pp"), self._pipe.device


def axes_of_optimizer(optimizer: torch.optim.Optimizer) -> tuple[Axis, ...]:
    """Returns the axes over which parameters of an optimizer are cut."""
    return axes_of_cuts(parameter for group in optimizer.param_groups for parameter in group["params"])
