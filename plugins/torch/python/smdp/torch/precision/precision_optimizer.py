"""The link of an optimizer that knows the precision of gradients."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from smdp.torch.optimizers.optimizer_link import OptimizerLink
from smdp.torch.precision.clipping import clip_grad_norm_


class PrecisionOptimizer(OptimizerLink):
    """Steps with gradients of the precision that the model computes in.

    Loss scales are those of a `GradScaler`, which takes this link as any optimizer. The gradients that it
    calls master gradients are the parameters' own; a master copy in fp32 will be in this link.
    """

    @property
    def overflow(self) -> bool:
        """Whether the last step was skipped for an overflow in fp16, which comes later."""
        return False

    def clip_master_grads(
        self, max_norm: float, parameters: nn.Module | Iterable[Tensor] | None = None
    ) -> Tensor:
        """Scales gradients so that their norm is at most `max_norm`; returns the norm before.

        Args:
            max_norm: Above 0.
            parameters: Whose gradients. Default: those of the parameters of the optimizer.
        """
        if parameters is None:
            parameters = [each for group in self.param_groups for each in group["params"]]
        return clip_grad_norm_(parameters, max_norm)
