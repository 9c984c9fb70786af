"""Attention whose forward takes tensors that have all heads, such as the slopes of ALiBi."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from smdp.torch.mesh.slices import even
from smdp.torch.tensor_parallelism.layers.divided import Divided, divide
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


class HeadInputs(Divided):
    """A module that gets this rank's heads of some keyword arguments.

    Attributes:
        head_inputs: The names of the arguments.
        all_heads: The number of heads of all ranks.
    """

    head_inputs: tuple[str, ...]
    all_heads: int

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module with slices of the arguments."""
        own = {name: self._own_heads(kwargs[name]) for name in self.head_inputs if name in kwargs}
        return super().forward(*args, **{**kwargs, **own})

    def _own_heads(self, tensor: Any) -> Any:
        if not isinstance(tensor, Tensor):
            return tensor
        begin, end = even(self.all_heads, self.tensor_axis.rank, self.tensor_axis.size)
        if tensor.ndim == 4:  # (batch, heads or 1, queries, keys)
            return tensor[:, begin:end] if tensor.shape[1] == self.all_heads else tensor
        # (batch x heads, queries or 1, keys)
        return tensor.unflatten(0, (-1, self.all_heads))[:, begin:end].flatten(0, 1)


def divide_head_inputs(module: nn.Module, names: tuple[str, ...], heads: int, axis: TensorAxis) -> None:
    """Makes a module use this rank's heads of the arguments with some names."""
    divide(module, HeadInputs, axis, head_inputs=names, all_heads=heads)
