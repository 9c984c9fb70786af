"""`smp.amp`: mixed precision."""

from __future__ import annotations

import torch

from smdp.torch.mesh.parallel_mesh import Axis, ParallelMesh
from smdp.torch.model_parallel.job.state import state
from smdp.torch.precision import gradient_scaler

__all__ = ["GradScaler"]


class GradScaler(gradient_scaler.GradScaler):
    """A `torch.amp.GradScaler` whose decisions are the same on all partitions.

    Call scale(loss) within a step, and step(optimizer) and update() outside of it.

    Args:
        init_scale: As for torch.amp.GradScaler.
        growth_factor: As for torch.amp.GradScaler.
        backoff_factor: As for torch.amp.GradScaler.
        growth_interval: As for torch.amp.GradScaler.
        enabled: As for torch.amp.GradScaler.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        torch.amp.GradScaler.__init__(
            self,
            "cuda" if torch.cuda.is_available() else "cpu",
            init_scale,
            growth_factor,
            backoff_factor,
            growth_interval,
            enabled,
        )
        if enabled:
            device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
            self._lazy_init_scale_growth_tracker(torch.device(device))

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides gradients by the scale, and combines the overflow flags of all partitions and slices.

        Raises:
            RuntimeError: The key `fp16` is true, with which the optimizer scales the loss.
        """
        if self.is_enabled() and state.cfg.fp16:
            raise RuntimeError(
                "[smdp] smp.amp.GradScaler is used with fp16 = True, with which smp.DistributedOptimizer"
                " scales the loss itself. Remove the scaler: call model.backward(loss) and optimizer.step()."
            )
        super().unscale_(optimizer)

    def _holders(
        self, optimizer: torch.optim.Optimizer
    ) -> tuple[ParallelMesh, tuple[Axis, ...], torch.device]:
        """Returns the mesh, the axes over which gradients are distributed, and the device of this rank."""
        cuts, pipe = gradient_scaler.axes_of_optimizer(optimizer), state.model.pipe
        if pipe is None:
            return state.running.mesh, cuts, self._scale.device
        return state.running.mesh, (*cuts, "pp"), pipe.device
