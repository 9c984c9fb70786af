"""`smp.optimizers`: the fused optimizers of Apex that SMP offers, on torch's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

__all__ = ["FusedAdam"]


class FusedAdam(torch.optim.Adam):
    """Adam, or AdamW by default, with Apex's arguments.

    Args:
        params: Parameters or groups of them.
        lr: The learning rate.
        bias_correction: Must be True.
        betas: As in torch.
        eps: As in torch.
        adam_w_mode: Whether weight decay is decoupled, as in AdamW.
        weight_decay: As in torch.
        amsgrad: Must be False.
        set_grad_none: Whether zero_grad() sets gradients to None.

    Raises:
        ValueError: An argument has a value that torch's Adam does not support.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        if not bias_correction or amsgrad:
            raise ValueError(
                f"[smdp] FusedAdam got bias_correction = {bias_correction} and amsgrad = {amsgrad}; only True"
                " and False are supported"
            )
        self._sets_none = set_grad_none
        super().__init__(params, lr, betas, eps, weight_decay, decoupled_weight_decay=adam_w_mode)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Removes the gradients, or sets them to zero without `set_grad_none`."""
        super().zero_grad(self._sets_none if set_to_none is None else set_to_none)


def _refused(name: str) -> type:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            f"[smdp] smp.optimizers.{name} needs the norms of whole tensors, of which ranks hold slices; use"
            " FusedAdam, or any torch.optim.Optimizer"
        )

    return type(name, (), {"__init__": refuse, "__doc__": "Cannot be used with slices of tensors."})


FusedLAMB = _refused("FusedLAMB")
FusedLamb = _refused("FusedLamb")
FusedNovoGrad = _refused("FusedNovoGrad")
