"""Dropout inside a divided layer, with the mask that one process would draw.

Every rank draws the whole mask and uses its slice. So ranks drop different elements, the generators of all
ranks stay in the same state, and dropout of replicated tensors is the same on all ranks.

Code between a column-parallel and a row-parallel layer must use dropout on slices only: of heads in tensors
with four dimensions, unless layers return such tensors, else of the last dimension. It must not draw other
random numbers. Dropout in a checkpoint inside of the region is an error, because backward runs it again
outside of the region.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from smdp.torch.tensor_parallelism.layers.divided import Divided
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis

_thread = threading.local()

_NAMES = {"train": "training"}  # of torch.dropout and of F.dropout
_OTHER_DROPOUTS = {F.alpha_dropout, F.feature_alpha_dropout, F.dropout1d, F.dropout2d, F.dropout3d}


class SplitRegion(Divided):
    """A module whose code between its column-parallel and its row-parallel layers works on slices.

    Attributes:
        joined_heads: The number of a rank's heads, if attention weights are (batch x heads, queries, keys).
        gathers_sequence: Whether the module works on whole sequences where the one around it has slices.
    """

    joined_heads: int = 0
    gathers_sequence: bool = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module. In training, dropout on slices drops what it would drop in one process."""
        if not self.training:
            return super().forward(*args, **kwargs)
        outer = getattr(_thread, "region", None)
        is_sequence = outer is not None and outer.is_sequence and not self.gathers_sequence
        with SplitDropout(self.tensor_axis, self.joined_heads, is_sequence=is_sequence):
            return super().forward(*args, **kwargs)


class OwnDropout(Divided):
    """A dropout module that works on slices of the last dimension, or on whole tensors, in any region.

    Attributes:
        has_slices: Whether it works on slices.
    """

    has_slices: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """Drops what it would drop in one process."""
        with SplitDropout(self.tensor_axis) as region:
            region.is_split = self.has_slices
            found: Tensor = super().forward(input)
        return found


def mark_split(is_split: bool, *, is_sequence: bool = False, output: Tensor | None = None) -> None:
    """Records whether the code that follows in the innermost region works on slices.

    Args:
        is_split: Whether it works on slices of heads or of the last dimension.
        is_sequence: Whether it works on slices of the sequence.
        output: A slice of the last dimension, which shows what its dimensions mean if there are four.
    """
    region = getattr(_thread, "region", None)
    if region is not None:
        region.is_split, region.is_sequence = is_split, is_sequence
        if is_split and output is not None and output.ndim == 4:
            region.features_last.append(output.shape)


class SplitDropout(TorchFunctionMode):
    """Replaces dropout on slices inside a region.

    Args:
        axis: The ranks that hold the slices.
        joined_heads: See `SplitRegion`.
        is_sequence: Whether the region begins with slices of the sequence.
    """

    def __init__(self, axis: TensorAxis, joined_heads: int = 0, *, is_sequence: bool = False) -> None:
        super().__init__()
        self._axis = axis
        self._joined_heads = joined_heads
        self.is_split, self.is_sequence = False, is_sequence
        self.features_last: list[torch.Size] = []

    def __enter__(self) -> SplitDropout:
        """Begins the region."""
        self._outer = getattr(_thread, "region", None)
        _thread.region = self
        self._checkpoint = _innermost_checkpoint()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        _thread.region = self._outer
        super().__exit__(*error)

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # The mode of an outer region sees the functions of inner ones, too.
        if (self.is_split or self.is_sequence) and _thread.region is self:
            if func is F.dropout:
                return self._dropout(*args, **kwargs)
            if func is torch.dropout:
                return self._dropout(*args, **{_NAMES.get(name, name): each for name, each in kwargs.items()})
            if func in _OTHER_DROPOUTS:
                _refuse(func, args, kwargs)
            if self.is_split and func is F.scaled_dot_product_attention:
                return self._attention(*args, **kwargs)
        return func(*args, **kwargs)

    def _dropout(
        self,
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
        *,
        of_attention: bool = False,
    ) -> Tensor:
        tensor = input
        if not training or p == 0:
            return tensor
        checkpoint = _innermost_checkpoint()
        # A part of a region may be compiled.
        if checkpoint is not None and self._checkpoint is not None and checkpoint != self._checkpoint:
            raise RuntimeError(
                "[smdp] tensor_parallel: a checkpoint inside of a divided module has dropout, and would drop"
                " other elements when backward runs it again. Put the checkpoint around the whole module."
            )
        if p == 1:
            nothing = tensor.new_zeros(())  # torch draws no mask either
            return tensor.mul_(nothing) if inplace else tensor * nothing
        if tensor.ndim == 3 and self._joined_heads and not self.is_sequence:
            weights = tensor.unflatten(0, (-1, self._joined_heads))
            return self._dropout(weights, p, training, inplace).flatten(0, 1)
        # Attention weights are (batch, heads, queries, keys) with a slice of the heads; other tensors have a
        # slice of their last dimension, or of the sequence.
        has_heads = tensor.ndim == 4 and (of_attention or tensor.shape not in self.features_last)
        if has_heads and not of_attention and any(one[-1] == tensor.shape[-1] for one in self.features_last):
            raise RuntimeError(
                "[smdp] tensor_parallel: dropout on a slice of shape"
                f" {tuple(tensor.shape)}, after a divided layer has returned {tuple(self.features_last[-1])},"
                " could mean heads or features. Use a plan that leaves the layers around it whole."
            )
        dim = 1 if has_heads or self.is_sequence else tensor.ndim - 1
        shape = list(tensor.shape)
        shape[dim] *= self._axis.size
        mask = tensor.new_empty(shape).bernoulli_(1 - p).div_(1 - p)
        mask = mask.narrow(dim, self._axis.rank * tensor.shape[dim], tensor.shape[dim])
        return tensor.mul_(mask) if inplace else tensor * mask

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if dropout_p == 0:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
        # As torch computes attention with dropout on the CPU: both factors take the root of the scale.
        root = math.sqrt(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        weights = (query * root) @ (key * root).transpose(-2, -1)
        if is_causal:
            attn_mask = weights.new_ones(weights.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = weights.new_zeros(attn_mask.shape).masked_fill(~attn_mask, -torch.inf)
            weights = weights + attn_mask
        # A query that may see no key has zeros and not NaN, as in torch.
        weights = torch.ops.aten._safe_softmax(weights, -1)
        return self._dropout(weights, dropout_p, of_attention=True) @ value


def _innermost_checkpoint() -> Any:
    """Returns what differs inside of a checkpoint: its hooks, or disabled gradients in a reentrant one.

    In compiled code, returns None.
    """
    if torch.compiler.is_compiling():
        return None
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    is_checkpoint = hooks is not None and hooks[0].__module__ == "torch.utils.checkpoint"
    return hooks if is_checkpoint else None, torch.is_grad_enabled()


def _refuse(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    given = inspect.signature(func).bind(*args, **kwargs)
    given.apply_defaults()
    if given.arguments["training"] and given.arguments["p"]:
        raise RuntimeError(
            f"[smdp] tensor_parallel: {func.__name__}() on slices would drop other elements than in one"
            " process. Use torch.nn.functional.dropout(), or a plan that leaves the layers around it whole."
        )
