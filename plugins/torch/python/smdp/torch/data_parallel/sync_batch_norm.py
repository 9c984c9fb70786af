"""Batch norm over the global batch, on any device."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase


class SyncBatchNorm(_BatchNorm):
    """Normalises with the mean and variance over the batches of all ranks, which may differ in size.

    Equal to one process with `BatchNorm` on the concatenated batch: forward, backward and running statistics.
    torch's own class of this name refuses tensors on the CPU.

    Args:
        num_features: Channels; inputs are [batch, channels, ...].
        eps: Added to the variance.
        momentum: Of the running statistics; None for their plain average.
        affine: Whether there are a weight and a bias.
        track_running_stats: Whether to keep running statistics.
        process_group: Default: the world.
        device: Of the parameters.
        dtype: Of the parameters.
        bias: Whether an affine one has a bias, too.
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
            raise ValueError(f"SyncBatchNorm needs an input of 2 or more dimensions, got {input.dim()}")
        kept = self.weight if self.affine else self.running_mean
        if kept is not None and kept.numel() != input.size(1):
            raise ValueError(
                f"[smdp] SyncBatchNorm has {kept.numel()} channels, and an input of shape"
                f" {list(input.shape)} has {input.size(1)}. Inputs are [batch, channels, ...]."
            )

    def forward(self, input: Tensor) -> Tensor:
        """Normalise; a collective call in training.

        Raises:
            ValueError: The input has other channels.
        """
        self._check_input_dim(input)
        if not input.is_floating_point():
            raise ValueError(f"[smdp] SyncBatchNorm got {input.dtype}; allowed: floating point.")
        # Without statistics a layer in evaluation takes its own batch's, as torch's does.
        if not self.training or not dist.is_initialized() or dist.get_world_size(self.process_group) == 1:
            return super().forward(input)
        dims = [0, *range(2, input.dim())]
        wide = input if input.dtype is torch.float64 else input.float()
        rows = torch.full((1,), input.numel() // input.size(1), dtype=wide.dtype, device=input.device)
        channels = input.size(1)
        shape = [1, channels, *[1] * (input.dim() - 2)]
        total = _Sum.apply(torch.cat([wide.sum(dims), rows]), self.process_group)
        count = total[-1]
        if input.numel() == 0 and count == 0:  # so it is on all ranks
            return super().forward(input)
        mean = total[:channels] / count
        # Two passes: a mean of squares less the square of the mean would lose digits.
        centred = wide - mean.view(shape)
        sums = _Sum.apply(torch.cat([centred.square().sum(dims), centred.sum(dims)]), self.process_group)
        # Zero but for what rounding the mean has left, much where it is far above the spread.
        rest = sums[channels:].detach() / count
        centred = centred - rest.view(shape)
        mean = mean + rest
        variance = sums[:channels] / count - rest.square()
        if self.training and self.track_running_stats and self.running_mean is not None:
            self._track(mean.detach(), variance.detach(), float(count.detach()))
        output = centred * torch.rsqrt(variance + self.eps).view(shape)
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
        """Give the module with every batch norm in it replaced; parameters and statistics are kept.

        Args:
            module: Changed in place, unless it is a batch norm itself.
            process_group: Over which statistics are taken. Default: the world.

        Raises:
            TypeError: It is no module.
            ValueError: A batch norm is lazy, and has seen no batch; or its class has a forward of its own,
                which would be lost.
        """
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"[smdp] SyncBatchNorm.convert got a {type(module).__name__} in place of a module."
            )
        return cls._converted(module, process_group, {})

    @classmethod
    def _converted(
        cls, module: nn.Module, process_group: ProcessGroup | None, done: dict[int, nn.Module]
    ) -> nn.Module:
        """`done`: what became of the modules so far, by id; several may hold one, under several names."""
        if isinstance(module, _LazyNormBase) and issubclass(module.cls_to_become or _BatchNorm, _BatchNorm):
            raise ValueError(
                f"[smdp] SyncBatchNorm.convert got {type(module).__name__}, which does not know its channels;"
                " run a batch through the model first."
            )
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            if type(module).forward not in (_BatchNorm.forward, nn.SyncBatchNorm.forward):
                raise ValueError(
                    f"[smdp] SyncBatchNorm.convert got {type(module).__name__}, a batch norm with a forward"
                    " of its own, which would be lost. Build it from smdp.torch.SyncBatchNorm, or convert"
                    " other parts."
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
    """Sum over ranks; so is its gradient, since every rank's loss depends on every rank's summand."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: ProcessGroup | None) -> Tensor:
        context.group = group
        values = values.clone()
        dist.all_reduce(values, group=group)
        return values

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _Sum.apply(grads[0].contiguous(), context.group), None  # which has a gradient, too
