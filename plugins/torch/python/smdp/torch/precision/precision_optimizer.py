"""The optimizer link for the precision of gradients."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from smdp.torch.optimizers.optimizer_link import OptimizerLink
from smdp.torch.precision.clipping import clip_grad_norm_


class PrecisionOptimizer(OptimizerLink):
    """Steps with gradients in the precision that the model computes in.

    For loss scaling, use a `GradScaler`, which accepts this link like any optimizer. There is no fp32 master
    copy of the parameters, so the master gradients are the parameters' own gradients.
    """

    @property
    def overflow(self) -> bool:
        """Whether the last step was skipped because of an fp16 overflow. Always False."""
        return False

    def clip_master_grads(
        self,
        max_norm: float,
        parameters: nn.Module | Iterable[Tensor] | None = None,
        norm_type: float = 2.0,
    ) -> Tensor:
        """Scales gradients so that their norm is at most `max_norm`.

        Args:
            max_norm: The largest norm, above 0.
            parameters: The parameters of the gradients. Default: the parameters of the optimizer.
            norm_type: The order of the norm.

        Returns:
            The norm before clipping.
        """
        if parameters is None:
            parameters = [each for group in self.param_groups for each in group["params"]]
        return clip_grad_norm_(parameters, max_norm, norm_type)
