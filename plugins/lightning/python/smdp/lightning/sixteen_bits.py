"""Lightning's precision plugin for parameters of 16 bits with masters of 32 bits in the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor, nn
from torch.optim import Optimizer

from smdp.torch import MixedPrecision, lower_precision
from smdp.torch.plugin_support import DynamicLossScale, map_tensors

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_FLOATS = (torch.float32, *DTYPES.values())
_FIRST_SCALE = 2.0**16  # that of Lightning's own mixed precision


class SixteenBits(Precision):
    """Keeps parameters in 16 bits, and lets `smdp.torch.MixedPrecision` scale, clip and step.

    Args:
        owner: The class that received the argument, for the message.
        precision: "bf16" or "fp16".

    Raises:
        ValueError: It is another kind.

    Attributes:
        dtype: The dtype of parameters and gradients.
    """

    def __init__(self, owner: str, precision: str) -> None:
        if precision not in DTYPES:
            raise ValueError(
                f"[smdp] {owner}: precision is {precision!r}; allowed: None, 'bf16', 'fp16'. For other kinds,"
                " use Trainer(precision=...)."
            )
        self.dtype = DTYPES[precision]
        self._mixed: MixedPrecision | None = None

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Converts the parameters of a module, its inputs and its outputs."""
        return lower_precision(module, self.dtype)

    def convert_input(self, data: Any) -> Any:
        """Converts a batch, because steps outside fit() do not go through the forward of the module."""
        return map_tensors(lambda one: one.to(self.dtype) if one.dtype in _FLOATS else one, data)

    def convert_output(self, data: Any) -> Any:
        """Converts what a step returns to 32 bits."""
        return map_tensors(lambda one: one.float() if one.dtype is self.dtype else one, data)

    def keep_masters(self, optimizer: Optimizer, model: nn.Module) -> MixedPrecision:
        """Returns an optimizer that keeps masters of the model's parameters."""
        scale = DynamicLossScale(_FIRST_SCALE) if self.dtype is torch.float16 else 1.0
        self._mixed = MixedPrecision(optimizer, model, self.dtype, loss_scale=scale)
        return self._mixed

    def pre_backward(self, tensor: Tensor, module: LightningModule) -> Tensor:
        """Scales the loss."""
        if self._mixed is not None:
            tensor = self._mixed.scale(tensor)
        return super().pre_backward(tensor, module)

    def optimizer_step(
        self, optimizer: Any, model: LightningModule, closure: Callable[[], Any], **kwargs: Any
    ) -> Any:
        """Runs the closure, which clips, and then makes the step, because an overflow skips it."""
        result = self._wrap_closure(model, optimizer, closure)
        optimizer.step(**kwargs)
        return result

    def clip_grad_by_norm(self, optimizer: Optimizer, clip_val: int | float) -> None:
        """Clips by the norm without the loss scale, over all ranks."""
        assert self._mixed is not None
        self._mixed.clip_master_grads(clip_val)

    def clip_grad_by_value(self, optimizer: Optimizer, clip_val: int | float) -> None:
        """Clips scaled gradients by as much larger values."""
        assert self._mixed is not None
        nn.utils.clip_grad_value_(self.main_params(optimizer), clip_val * self._mixed.loss_scale)
