"""Logits whose vocabulary is divided over the ranks, which losses use without gathering them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.utils._pytree import tree_leaves, tree_map_only

from smdp.torch.mesh.slices import even
from smdp.torch.tensor_parallelism.functions import copy_to_ranks
from smdp.torch.tensor_parallelism.layers.logits_graph import (
    gathered_logits,
    has_part_behind,
    joined_logits,
    part_of_result,
    set_part_behind,
    slice_of_logits,
)
from smdp.torch.tensor_parallelism.layers.vocabulary_loss import vocabulary_cross_entropy
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


class SplitLogits(Tensor):
    """Logits with the shape of the whole vocabulary, of which each rank holds a slice.

    Cross-entropy, views that keep the vocabulary, conversions, and functions of single elements use the
    slice. All other functions gather the logits first, so all ranks must call them. Changes in place change
    the slice. Hooks get gradients as SplitLogits.

    Attributes:
        tensor_axis: The ranks that hold the slices.
    """

    tensor_axis: TensorAxis
    _part: Tensor

    @staticmethod
    def __new__(cls, part: Tensor, axis: TensorAxis, vocabulary: int) -> SplitLogits:
        """Returns logits of a vocabulary of this size."""

        def make(part: Tensor) -> SplitLogits:
            wrapper: Any = Tensor._make_wrapper_subclass
            shape = (*part.shape[:-1], vocabulary)
            made: SplitLogits = wrapper(cls, shape, dtype=part.dtype, device=part.device)
            made._part, made.tensor_axis = part, axis
            return made

        return cast("SplitLogits", joined_logits(part, axis, make))

    @property
    def part(self) -> Tensor:
        """This rank's slice, (..., slice of the vocabulary)."""
        return self._part if has_part_behind(self) else part_of_result(self, self._part, self.tensor_axis)

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
        first = args[0] if args else None
        if func in (torch.autograd.grad, torch.autograd.backward):
            return (_gradients if func is torch.autograd.grad else _backward)(func, *args, **kwargs)
        handler = _HANDLERS.get(func) if isinstance(first, SplitLogits) else None
        if handler is not None:
            found = handler(func, *args, **kwargs)
            if found is not NotImplemented:
                return found
        name = getattr(func, "__name__", "")
        if (name in ("__get__", "__set__") and func not in _NOT_OF_THE_WHOLE) or func in _OF_THE_WHOLE:
            return _as_whole(func, *args, **kwargs)
        if _changes_first(name):
            if isinstance(first, SplitLogits):
                return _changed(func, *args, **kwargs)
            changed = None if isinstance(first, Tensor) else first
        else:
            changed = (kwargs.get("out"), first if kwargs.get("inplace") or func == _SET_DATA else None)
        if any(isinstance(each, SplitLogits) for each in tree_leaves(changed)):
            raise _refused(name)
        args, kwargs = tree_map_only(SplitLogits, SplitLogits.gathered, (tuple(args), kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func._schema.is_mutable and args and isinstance(args[0], SplitLogits):
            raise _refused(str(func))
        args, kwargs = tree_map_only(SplitLogits, SplitLogits.gathered, (tuple(args), kwargs or {}))
        return func(*args, **kwargs)


def _changes_first(name: str) -> bool:
    """Returns whether a function with this name changes its first argument in place."""
    return name in _CHANGES or (name.endswith("_") and not name.endswith("__"))


def _refused(name: str) -> RuntimeError:
    return RuntimeError(
        f"[smdp] {name} cannot change logits whose vocabulary is divided over ranks in place. Use a function"
        " that returns new logits."
    )


def _as_whole(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _like(logits: SplitLogits, part: Tensor) -> SplitLogits:
    if part is logits.part:
        return logits  # as torch does, for example in float()
    return SplitLogits(part, logits.tensor_axis, logits.shape[-1])


def _elementwise(func: Callable[..., Tensor], logits: SplitLogits, *args: Any, **kwargs: Any) -> Any:
    if any(isinstance(each, Tensor) and each.ndim > 0 for each in (*args, *kwargs.values())):
        return NotImplemented
    axis = logits.tensor_axis
    # A learnable number, such as a scale, gets the gradients of all slices.
    args, kwargs = tree_map_only(Tensor, lambda each: copy_to_ranks(each, axis), (args, kwargs))
    return _like(logits, func(logits.part, *args, **kwargs))


def _converted(func: Callable[..., Any], logits: SplitLogits, *args: Any, **kwargs: Any) -> Any:
    return _elementwise(func, logits, *args, **kwargs) if args or kwargs else func(logits.part)


def _changed(func: Callable[..., Any], logits: SplitLogits, *args: Any, **kwargs: Any) -> SplitLogits:
    axis, part = logits.tensor_axis, logits.part
    if torch.is_grad_enabled() and logits.requires_grad and logits.is_leaf:
        raise RuntimeError("[smdp] logits that are a leaf and require a gradient cannot be changed in place.")
    others = (*args, *kwargs.values())
    if func in _ELEMENTWISE_CHANGES and not any(isinstance(each, Tensor) for each in others):
        func(part, *args, **kwargs)
    else:
        whole = logits.gathered().clone()
        args, kwargs = tree_map_only(SplitLogits, SplitLogits.gathered, (args, kwargs))
        func(whole, *args, **kwargs)
        if whole.shape != logits.shape or whole.dtype != logits.dtype:
            raise _refused(func.__name__)
        part.copy_(slice_of_logits(whole, axis))
    logits._part = part
    set_part_behind(logits, part, axis)
    return logits


def _as_part(func: Callable[..., Any], logits: SplitLogits, *args: Any) -> Any:
    return func(logits.part, *args) if has_part_behind(logits) else _as_whole(func, logits, *args)


def _gradient(func: Callable[..., Any], logits: SplitLogits) -> Any:
    found = _as_part(func, logits)
    return _like(logits, found) if has_part_behind(logits) and found is not None else found


def _hooked(func: Callable[..., Any], logits: SplitLogits, hook: Callable[[Tensor], Any]) -> Any:
    if not has_part_behind(logits):
        return _as_whole(func, logits, hook)

    def run(gradient: Tensor) -> Tensor | None:
        found = hook(_like(logits, gradient))
        if found is None or isinstance(found, SplitLogits):
            return None if found is None else found.part
        return slice_of_logits(found, logits.tensor_axis)

    return func(logits.part, run)


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
    # Resolved here, because the slice of a rank may be empty.
    known = math.prod(size for size in shape if size != -1)
    if -1 in shape and known and logits.numel() % known == 0:
        shape = tuple(logits.numel() // known if size == -1 else size for size in shape)
    if shape[-1] != logits.shape[-1] or math.prod(shape) != logits.numel():
        return NotImplemented
    return _like(logits, func(logits.part, (*shape[:-1], logits.part.shape[-1])))


def _viewed_as(func: Callable[..., Tensor], logits: SplitLogits, other: Tensor) -> Any:
    if not isinstance(other, SplitLogits):
        return NotImplemented
    return _like(logits, func(logits.part, other.part))


def _indexed(func: Callable[..., Tensor], logits: SplitLogits, index: Any) -> Any:
    items = index if isinstance(index, tuple) and index else (index,)
    named = sum(
        each.ndim if isinstance(each, Tensor) and each.dtype == torch.bool else 1
        for each in items
        if each is not None and each is not Ellipsis
    )
    if Ellipsis in [each for each in items if not isinstance(each, Tensor)]:
        keeps = (items[-1] is Ellipsis and named < logits.ndim) or (
            isinstance(items[-1], slice) and items[-1] == slice(None)
        )
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
    part = logits.part
    if torch.is_autocast_enabled(part.device.type) and part.dtype in (torch.float16, torch.bfloat16):
        part = part.float()  # as autocast does
    return vocabulary_cross_entropy(
        part,
        target,
        logits.tensor_axis,
        logits.shape[-1],
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )


def _of_parts(outputs: Any, gradients: Any) -> tuple[list[Any], list[Any]]:
    """Returns outputs and their gradients, with slices instead of divided logits."""
    outputs = [outputs] if isinstance(outputs, (Tensor, GradientEdge)) else list(outputs)
    gradients = [gradients] if gradients is None or isinstance(gradients, Tensor) else list(gradients)
    gradients += [None] * (len(outputs) - len(gradients))
    for place, (output, gradient) in enumerate(zip(outputs, gradients, strict=True)):
        if isinstance(output, SplitLogits):
            outputs[place] = output.part
            if gradient is not None and not isinstance(gradient, SplitLogits):
                gradients[place] = slice_of_logits(gradient, output.tensor_axis)
        if isinstance(gradient, SplitLogits):
            gradients[place] = gradient.part if isinstance(output, SplitLogits) else gradient.gathered()
    return outputs, gradients


def _backward(func: Callable[..., None], tensors: Any, grad_tensors: Any = None, **kwargs: Any) -> None:
    tensors, grad_tensors = _of_parts(tensors, grad_tensors)
    func(tensors, grad_tensors, **kwargs)


def _gradients(
    func: Callable[..., Any], outputs: Any, inputs: Any, grad_outputs: Any = None, **kwargs: Any
) -> Any:
    """Computes gradients of slices: those of the other slices are summed in the graph."""
    outputs, grad_outputs = _of_parts(outputs, grad_outputs)
    given = (inputs,) if isinstance(inputs, (Tensor, GradientEdge)) else tuple(inputs)
    behind = [isinstance(each, SplitLogits) and has_part_behind(each) for each in given]
    parts = [each.part if is_part else each for each, is_part in zip(given, behind, strict=True)]
    found = _as_whole(func, outputs, parts, grad_outputs, **kwargs)
    return tuple(
        _like(each, gradient) if is_part and gradient is not None else gradient
        for each, is_part, gradient in zip(given, behind, found, strict=True)
    )


# Functions of autograd, which use the slice that is behind the logits.
_OF_THE_PART: tuple[Any, ...] = (
    Tensor.grad_fn.__get__,
    Tensor.is_leaf.__get__,
    Tensor._version.__get__,
    Tensor.retain_grad,
)
_OF_THE_PART += (Tensor.retains_grad.__get__, Tensor.grad.__set__, Tensor.untyped_storage)
_SET_DATA = Tensor.data.__set__
_NOT_OF_THE_WHOLE = {_SET_DATA, Tensor.T.__get__, Tensor.mT.__get__, Tensor.H.__get__, Tensor.mH.__get__}
_NOT_OF_THE_WHOLE |= {Tensor.real.__get__, Tensor.imag.__get__}
_CHANGES = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__idiv__", "__itruediv__", "__ifloordiv__"}
_CHANGES |= {"__imod__", "__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"}
_ELEMENTWISE_CHANGES = {Tensor.mul_, Tensor.div_, Tensor.__imul__, Tensor.__itruediv__, Tensor.clamp_}
_ELEMENTWISE_CHANGES |= {Tensor.tanh_, Tensor.zero_, Tensor.fill_}
_OF_THE_WHOLE = {Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point, torch.is_floating_point}
_OF_THE_WHOLE |= {Tensor.stride, Tensor.element_size, Tensor.__len__, torch.numel, Tensor.__repr__}
_OF_THE_WHOLE |= {Tensor.requires_grad_}
_ELEMENTWISE = [Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.to]
_ELEMENTWISE += [
    Tensor.contiguous,
    Tensor.clone,
    Tensor.detach,
    Tensor.data.__get__,
    Tensor.tanh,
    torch.tanh,
    torch.clone,
]
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
    **dict.fromkeys(_OF_THE_PART, _as_part),
    Tensor.grad.__get__: _gradient,
    Tensor.register_hook: _hooked,
    Tensor.type: _converted,
    Tensor.view: _viewed,
    Tensor.reshape: _viewed,
    Tensor.view_as: _viewed_as,
    Tensor.__getitem__: _indexed,
    F.cross_entropy: _cross_entropy,
}
