"""Batch norm over the global batch, on any device."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase


class SyncBatchNorm(_BatchNorm):
    """Normalizes with the mean and variance over the batches of all ranks, which may differ in size.

    Forward, backward and running statistics equal those of one process with `BatchNorm` on the concatenated
    batch. Unlike `torch.nn.SyncBatchNorm`, this class also works on the CPU.

    Args:
        num_features: The number of channels; inputs have the shape [batch, channels, ...].
        eps: A value added to the variance.
        momentum: The weight of a new batch in the running statistics; None for their plain average.
        affine: Whether the layer has a weight and a bias.
        track_running_stats: Whether to keep running statistics.
        process_group: The group of the ranks that share statistics. Default: all ranks.
        device: The device of the parameters.
        dtype: The dtype of the parameters.
        bias: Whether an affine layer has a bias.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: ProcessGroup | None = None,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype, bias=bias
        )
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(
                f"[smdp] SyncBatchNorm got an input of {input.dim()} dimensions, but needs 2 or more:"
                " [batch, channels, ...]."
            )
        kept = self.weight if self.affine else self.running_mean
        if kept is not None and kept.numel() != input.size(1):
            raise ValueError(
                f"[smdp] SyncBatchNorm has {kept.numel()} channels, but the input of shape"
                f" {list(input.shape)} has {input.size(1)}. Inputs must be [batch, channels, ...]."
            )

    def forward(self, input: Tensor) -> Tensor:
        """Returns the normalized input. In training this is a collective call.

        Raises:
            ValueError: The input has a different number of channels, or is not floating point.
        """
        self._check_input_dim(input)
        if not input.is_floating_point():
            raise ValueError(f"[smdp] SyncBatchNorm got {input.dtype}; it needs a floating-point dtype.")
        # In evaluation without running statistics, each rank uses those of its own batch, as torch does.
        if not self.training or not dist.is_initialized() or dist.get_world_size(self.process_group) == 1:
            return super().forward(input)
        dims = [0, *range(2, input.dim())]
        wide = input if input.dtype is torch.float64 else input.float()
        rows = torch.full((1,), input.numel() // input.size(1), dtype=wide.dtype, device=input.device)
        channels = input.size(1)
        shape = [1, channels, *[1] * (input.dim() - 2)]
        total = _Sum.apply(torch.cat([wide.sum(dims), rows]), self.process_group)
        count = total[-1]
        if input.numel() == 0 and count == 0:  # the input is empty on all ranks
            return super().forward(input)
        mean = total[:channels] / count
        # Two passes, because E[x^2] - E[x]^2 would lose digits.
        centered = wide - mean.view(shape)
        sums = _Sum.apply(torch.cat([centered.square().sum(dims), centered.sum(dims)]), self.process_group)
        # The rounding error of the mean, which matters if the mean is much larger than the spread.
        rest = sums[channels:].detach() / count
        centered = centered - rest.view(shape)
        mean = mean + rest
        variance = sums[:channels] / count - rest.square()
        if self.training and self.track_running_stats and self.running_mean is not None:
            self._track(mean.detach(), variance.detach(), float(count.detach()))
        output = centered * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is not None:
            output = output * self.weight.view(shape)
        if self.bias is not None:
            output = output + self.bias.view(shape)
        return output.to(input.dtype)

    def _track(self, mean: Tensor, variance: Tensor, count: float) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / max(count - 1, 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)

    @classmethod
    def convert(cls, module: nn.Module, process_group: ProcessGroup | None = None) -> nn.Module:
        """Replaces every batch norm in a module and keeps parameters and statistics.

        Args:
            module: The module. It is changed in place, unless it is a batch norm itself.
            process_group: The group of the ranks that share statistics. Default: all ranks.

        Returns:
            The module, or its replacement if it is a batch norm itself.

        Raises:
            TypeError: `module` is not a module.
            ValueError: A batch norm is lazy and has not seen a batch, or its class overrides `forward`.
        """
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"[smdp] SyncBatchNorm.convert got a {type(module).__name__} in place of a torch.nn.Module."
            )
        return cls._converted(module, process_group, {})

    @classmethod
    def _converted(
        cls, module: nn.Module, process_group: ProcessGroup | None, done: dict[int, nn.Module]
    ) -> nn.Module:
        """`done` maps the ids of converted modules to the results, because a module may appear twice."""
        if isinstance(module, _LazyNormBase) and issubclass(module.cls_to_become or _BatchNorm, _BatchNorm):
            raise ValueError(
                f"[smdp] SyncBatchNorm.convert got {type(module).__name__}, which does not know its number of"
                " channels yet. Run a batch through the model first."
            )
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            if type(module).forward not in (_BatchNorm.forward, nn.SyncBatchNorm.forward):
                raise ValueError(
                    f"[smdp] SyncBatchNorm.convert got {type(module).__name__}, a batch norm that overrides"
                    " forward(); the conversion would drop its code. Derive it from"
                    " smdp.torch.SyncBatchNorm, or convert only the other parts of the model."
                )
            new = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
                process_group,
                bias=module.bias is not None,
            )
            for name, value in (*module._parameters.items(), *module._buffers.items()):
                setattr(new, name, value)
            return new.train(module.training)
        for name, child in module._modules.items():
            if child is not None:
                if id(child) not in done:
                    done[id(child)] = cls._converted(child, process_group, done)
                setattr(module, name, done[id(child)])
        return module


class _Sum(torch.autograd.Function):
    """Sums over ranks. The gradient is also a sum, since each rank's loss depends on every rank's values."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: ProcessGroup | None) -> Tensor:
        context.group = group
        values = values.clone()
        dist.all_reduce(values, group=group)
        return values

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Sum.apply(grads[0].contiguous(), context.group), None  # apply() allows a second backward
