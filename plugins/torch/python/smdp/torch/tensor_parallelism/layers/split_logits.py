"""Logits whose vocabulary is divided over the ranks, which losses use without gathering them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map_only

from smdp.torch.mesh.slices import even
from smdp.torch.tensor_parallelism.functions import gather_from_ranks
from smdp.torch.tensor_parallelism.layers.vocabulary_loss import vocabulary_cross_entropy
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


class SplitLogits(Tensor):
    """Logits with the shape of the whole vocabulary, of which each rank holds a slice.

    Cross-entropy, views that keep the vocabulary, conversions, and functions of single elements use the
    slice. All other functions gather the logits first, so all ranks must call them.

    Attributes:
        part: This rank's slice, (..., slice of the vocabulary).
        tensor_axis: The ranks that hold the slices.
    """

    part: Tensor
    tensor_axis: TensorAxis

    @staticmethod
    def __new__(cls, part: Tensor, axis: TensorAxis, vocabulary: int) -> SplitLogits:
        """Returns logits of a vocabulary of this size."""
        shape = (*part.shape[:-1], vocabulary)
        make: Any = Tensor._make_wrapper_subclass
        made: SplitLogits = make(cls, shape, dtype=part.dtype, device=part.device)
        made.part, made.tensor_axis = part, axis
        return made

    def __repr__(self, **options: Any) -> str:
        return f"SplitLogits(shape={tuple(self.shape)}, over {self.tensor_axis.size} ranks)"

    def gathered(self) -> Tensor:
        """Returns the logits of the whole vocabulary. All ranks must call this."""
        return gathered_logits(self.part, self.tensor_axis, self.shape[-1])

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _OF_THE_PART and isinstance(args[0], SplitLogits):
            return func(args[0].part, *args[1:], **kwargs)
        if getattr(func, "__name__", "") == "__get__" or func in _OF_THE_WHOLE:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func is torch.autograd.grad:
            return _gradients(func, *args, **kwargs)
        handler = _HANDLERS.get(func)
        if handler is not None and isinstance(args[0] if args else None, SplitLogits):
            found = handler(func, *args, **kwargs)
            if found is not NotImplemented:
                return found
        args, kwargs = tree_map_only(SplitLogits, SplitLogits.gathered, (tuple(args), kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = tree_map_only(SplitLogits, SplitLogits.gathered, (tuple(args), kwargs or {}))
        return func(*args, **kwargs)


def gathered_logits(part: Tensor, axis: TensorAxis, vocabulary: int) -> Tensor:
    """Returns the logits of a whole vocabulary, given this rank's slice."""
    # The last ranks may have shorter slices.
    width = -(-vocabulary // axis.size)
    padded = F.pad(part, (0, width - part.shape[-1]))
    return gather_from_ranks(padded, -1, axis)[..., :vocabulary]


def _like(logits: SplitLogits, part: Tensor) -> SplitLogits:
    if part is logits.part:
        return logits  # as torch does, for example in float()
    return SplitLogits(part, logits.tensor_axis, logits.shape[-1])


def _elementwise(func: Callable[..., Tensor], logits: SplitLogits, *args: Any, **kwargs: Any) -> Any:
    if any(isinstance(each, Tensor) and each.ndim > 0 for each in (*args, *kwargs.values())):
        return NotImplemented
    return _like(logits, func(logits.part, *args, **kwargs))


def _added(func: Callable[..., Tensor], logits: SplitLogits, other: Any, **kwargs: Any) -> Any:
    if not isinstance(other, Tensor) or other.ndim == 0:
        return _elementwise(func, logits, other, **kwargs)
    # A constant for each token, such as BART's bias. A sum with other shapes would not fit the slice.
    fits = other.ndim <= logits.ndim and other.shape[-1] == logits.shape[-1] == other.numel()
    if other.requires_grad or isinstance(other, SplitLogits) or not fits:
        return NotImplemented
    axis = logits.tensor_axis
    begin, end = even(logits.shape[-1], axis.rank, axis.size)
    return _like(logits, func(logits.part, other[..., begin:end], **kwargs))


def _viewed(func: Callable[..., Tensor], logits: SplitLogits, *sizes: Any, **kwargs: Any) -> Any:
    shape = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list, torch.Size)) else sizes
    if kwargs or not shape or not all(isinstance(size, int) for size in shape):
        return NotImplemented
    if shape[-1] == -1:
        rows = 1
        for size in shape[:-1]:
            rows *= size
        if rows * logits.shape[-1] != logits.numel():
            return NotImplemented
    elif shape[-1] != logits.shape[-1]:
        return NotImplemented
    return _like(logits, func(logits.part, (*shape[:-1], logits.part.shape[-1])))


def _viewed_as(func: Callable[..., Tensor], logits: SplitLogits, other: Tensor) -> Any:
    if not isinstance(other, SplitLogits):
        return NotImplemented
    return _like(logits, func(logits.part, other.part))


def _indexed(func: Callable[..., Tensor], logits: SplitLogits, index: Any) -> Any:
    items = index if isinstance(index, tuple) else (index,)
    named = sum(
        each.ndim if isinstance(each, Tensor) and each.dtype == torch.bool else 1
        for each in items
        if each is not None and each is not Ellipsis
    )
    if Ellipsis in [each for each in items if not isinstance(each, Tensor)]:
        keeps = items[-1] is Ellipsis or (isinstance(items[-1], slice) and items[-1] == slice(None))
    else:
        keeps = named < logits.ndim or (isinstance(items[-1], slice) and items[-1] == slice(None))
    return _like(logits, func(logits.part, index)) if keeps else NotImplemented


def _cross_entropy(
    func: Callable[..., Tensor],
    logits: SplitLogits,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    is_plain = weight is None and size_average is None and reduce is None
    if not is_plain or target.is_floating_point() or logits.ndim != 2:
        return NotImplemented
    return vocabulary_cross_entropy(
        logits.part,
        target,
        logits.tensor_axis,
        logits.shape[-1],
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )


def _gradients(
    func: Callable[..., Any], outputs: Any, inputs: Any, grad_outputs: Any = None, **kwargs: Any
) -> Any:
    """Computes gradients of slices: those of the other slices are summed in the graph."""
    outputs, grad_outputs = tree_map_only(SplitLogits, lambda each: each.part, (outputs, grad_outputs))
    return func(outputs, inputs, grad_outputs, **kwargs)


_OF_THE_PART = {Tensor.requires_grad.__get__, Tensor.grad_fn.__get__, Tensor.is_leaf.__get__}
_OF_THE_PART.add(Tensor.untyped_storage)
_OF_THE_WHOLE = {Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point, torch.is_floating_point}
_OF_THE_WHOLE |= {Tensor.stride, Tensor.element_size, Tensor.__len__, torch.numel, Tensor.__repr__}
_ELEMENTWISE = [Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.to, Tensor.type]
_ELEMENTWISE += [Tensor.contiguous, Tensor.clone, Tensor.detach, Tensor.tanh, torch.tanh, torch.clone]
_ELEMENTWISE += [
    Tensor.mul,
    Tensor.div,
    Tensor.__mul__,
    Tensor.__rmul__,
    Tensor.__truediv__,
    torch.mul,
    torch.div,
]
_ELEMENTWISE += [torch.ones_like, Tensor.neg, torch.neg, Tensor.true_divide, Tensor.__neg__]
_HANDLERS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys((Tensor.add, Tensor.__add__, torch.add), _added),
    Tensor.view: _viewed,
    Tensor.reshape: _viewed,
    Tensor.view_as: _viewed_as,
    Tensor.__getitem__: _indexed,
    F.cross_entropy: _cross_entropy,
}
