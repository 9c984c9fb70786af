"""`smp.nn.DistributedLayerNorm`, a layer norm whose width is divided, and `smp.nn.FusedLayerNorm`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smdp.torch.model_parallel.nn.distributed_module import DistributedModule, check_divisible
from smdp.torch.model_parallel.nn.layout import Layout
from smdp.torch.tensor_parallelism.functions import gather_for_parts


class DistributedLayerNorm(DistributedModule):
    """Replaces torch.nn.LayerNorm over the last dimension.

    With `optimize` = "memory", each rank normalizes a slice of the width, for which the ranks exchange two
    numbers per token. With "speed", each rank normalizes its own samples.

    Args:
        normalized_shape: The width, or a list of it.
        eps: As in torch.
        elementwise_affine: Whether there are a weight and a bias.
        bias: Whether there is a bias.
        _layout: The layout of the samples of all ranks, inside of another distributed module. None: the norm
            is called with this rank's samples, and returns them.
        _enters: Whether it is called with this rank's samples inside of another module.
        _leaves: Whether it returns this rank's samples inside of another module.

    Raises:
        ValueError: There are several dimensions, or the width is not divisible by `tensor_parallel_degree`.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        _layout: Layout | None = None,
        _enters: bool = False,
        _leaves: bool = False,
    ) -> None:
        super().__init__()
        shape = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
        if len(shape) != 1:
            raise ValueError(
                f"[smdp] DistributedLayerNorm got normalized_shape = {shape}; only the last dimension can be"
                " normalized"
            )
        self.eps = eps
        self.layout = _layout or Layout.of_job()
        is_alone = _layout is None
        # A norm of whole samples alone needs no other rank.
        self._enters = _enters or (is_alone and self.layout.is_split)
        self._leaves = _leaves or (is_alone and self.layout.is_split)
        self._width = shape[0]
        if self.layout.is_split:
            check_divisible("normalized_shape", self._width, self.layout.size)
        self.weight = nn.Parameter(torch.ones(self._width)) if elementwise_affine else None
        self.bias = nn.Parameter(torch.zeros(self._width)) if elementwise_affine and bias else None
        for name in ("weight", "bias"):
            with torch.no_grad():
                if self.layout.is_split:
                    self.keep_slice(name, 0)
                elif not is_alone:
                    self.keep_whole(name)

    def forward(self, input: Tensor) -> Tensor:
        """Returns normalized values of the shape and dtype of the input."""
        found = self.layout.enter(input) if self._enters else input
        if self.layout.is_split and self.layout.size > 1:
            found = self._of_slice(found)
        else:
            found = F.layer_norm(found, (self._width,), self.weight, self.bias, self.eps)
        return self.layout.leave(found) if self._leaves else found

    def _of_slice(self, tensor: Tensor) -> Tensor:
        """Returns this rank's slice, normalized. The squares are summed around each rank's own mean."""
        values = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
        own_mean = values.mean(-1, keepdim=True)
        own_squares = (values - own_mean).square().sum(-1, keepdim=True)
        told = gather_for_parts(torch.cat([own_mean, own_squares], -1), -1, self.layout.axis)
        means, squares = told.unflatten(-1, (self.layout.size, 2)).unbind(-1)
        mean = means.mean(-1, keepdim=True)
        between = (means - mean).square().sum(-1, keepdim=True) * tensor.shape[-1]
        variance = (squares.sum(-1, keepdim=True) + between) / self._width
        found = (values - mean) * torch.rsqrt(variance + self.eps)
        if self.weight is not None:
            found = found * self.weight
        return (found if self.bias is None else found + self.bias).to(tensor.dtype)


class _Norms(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (nn.LayerNorm, DistributedLayerNorm))


class FusedLayerNorm(nn.LayerNorm, metaclass=_Norms):
    """torch.nn.LayerNorm, by the name with which scripts look for layer norms.

    Each torch.nn.LayerNorm and DistributedLayerNorm is an instance of it, so that scripts find the norms of
    distributed transformers when they choose parameters without weight decay.
    """
