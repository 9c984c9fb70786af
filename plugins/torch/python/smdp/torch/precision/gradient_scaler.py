"""A loss scaler for fp16 on which all stages agree."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

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
        """Divide gradients by the scale, and let all stages know of an overflow."""
        super().unscale_(optimizer)
        if not self.is_enabled():
            return
        found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        pipe = self._pipelined()
        device = pipe.device
        if not found:  # a stage without gradients
            found[device] = torch.zeros((), device=device)
        for flag in found.values():
            total = flag.reshape(1).to(device)
            dist.all_reduce(total, op=dist.ReduceOp.MAX, group=pipe.mesh.group("pp"))
            flag.copy_(total.reshape(flag.shape))

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Step unless a stage has an overflow; unscales first, where that has not been done."""
        if self.is_enabled() and not self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]:
            self.unscale_(optimizer)
        result: float | None = super().step(optimizer, *args, **kwargs)
        return result

    def _pipelined(self) -> PipelinedModule:
        return self._pipe
