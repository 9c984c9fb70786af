"""Sequence parallelism: between divided layers, each rank holds a slice of the sequence (dimension 1).

Modules with column-parallel layers gather the sequence, row-parallel layers sum and scatter it, and norms,
dropouts and residual additions between them work on slices.
"""

from __future__ import annotations

import weakref
from typing import Any, cast

import torch
from torch import Tensor, nn

from smdp.torch.tensor_parallelism.collectives import gather
from smdp.torch.tensor_parallelism.functions import gather_for_parts, gather_from_ranks, split_over_ranks
from smdp.torch.tensor_parallelism.layers.divided import Divided
from smdp.torch.tensor_parallelism.layers.split_dropout import SplitDropout
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis

_DIM = 1


class SequenceSlices:
    """Whether the modules of a stack of layers work on slices of the sequence: if any layer is in training.

    Evaluation and generation work on whole sequences, whose length may be any. A layer passes its activations
    to the next one, so a layer that alone is in evaluation, for example because it is frozen, gets slices.
    """

    def __init__(self) -> None:
        self._layers: list[weakref.ref[nn.Module]] = []

    def add(self, layer: nn.Module) -> None:
        """Adds a layer of the stack."""
        self._layers.append(weakref.ref(layer))

    def __deepcopy__(self, memo: object) -> SequenceSlices:
        """Returns the object of a copied stack, to which the copied layers add themselves."""
        return SequenceSlices()

    @property
    def is_on(self) -> bool:
        """Whether activations between divided layers are slices."""
        layers = [found() for found in self._layers]
        return any(layer is not None and layer.training for layer in layers)


class StackLayer(Divided):
    """A layer of the stack, whose code outside its regions works on slices.

    Attributes:
        sequence: Whether it does.
        is_first: Whether the layer is called with whole sequences.
        is_last: Whether it returns whole sequences.
    """

    sequence: SequenceSlices
    is_first: bool = False
    is_last: bool = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a copy."""
        super().__setstate__(state)
        self.sequence.add(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer with slices."""
        if not self.sequence.is_on:
            return super().forward(*args, **kwargs)
        if self.is_first:
            args, kwargs = _with_hidden(self._split, args, kwargs)
        with SplitDropout(self.tensor_axis, is_sequence=True):
            found = super().forward(*args, **kwargs)
        if not self.is_last:
            return found
        if isinstance(found, tuple):
            return (gather_from_ranks(found[0], _DIM, self.tensor_axis), *found[1:])
        return gather_from_ranks(found, _DIM, self.tensor_axis)

    def _split(self, hidden: Tensor) -> Tensor:
        length, size = hidden.shape[_DIM], self.tensor_axis.size
        if length % size:
            raise ValueError(
                f"[smdp] sequence_parallel: a sequence of {length} tokens cannot be divided over {size}"
                f" ranks. Pad it to a multiple of {size}, for example with a collator's pad_to_multiple_of."
            )
        return split_over_ranks(hidden, _DIM, self.tensor_axis)


class SequenceRegion(Divided):
    """A module that is called with a slice of the sequence, and works on the whole sequence."""

    sequence: SequenceSlices
    gathers_sequence = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module with whole sequences."""
        if self.sequence.is_on:
            # Other arguments, such as the output of an encoder, are whole sequences.
            for value in (*args, *kwargs.values()):
                if _is_hidden(value):
                    value._smdp_is_whole = True
            args, kwargs = _with_hidden(self._gather, args, kwargs)
        return super().forward(*args, **kwargs)

    def _gather(self, hidden: Tensor) -> Tensor:
        return gathered_input(hidden, self.tensor_axis)


class _Gathered:
    """The whole input of some layers in backward, gathered once more, because forward kept only the slice."""

    def __init__(self, axis: TensorAxis) -> None:
        self.axis = axis
        self.whole: Tensor | None = None

    def again(self, part: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns the whole input, which the layers that use it share."""
        if self.whole is None or self.whole.dtype != dtype:
            self.whole = gather(part.to(dtype), _DIM, self.axis.size, self.axis.number)
        return self.whole


def gathered_input(part: Tensor, axis: TensorAxis) -> Tensor:
    """Returns the whole input of layers that are divided by outputs, from a slice."""
    again = _Gathered(axis)
    # The last step of backward: the layers have used the whole input.
    dropped = _Drop.apply(part, again) if part.requires_grad else part
    whole: Any = gather_for_parts(dropped, _DIM, axis)
    whole._smdp_slice = (part.detach(), again)
    return whole


def is_gathered(tensor: Tensor) -> bool:
    """Returns whether a tensor is the result of gathered_input()."""
    return hasattr(tensor, "_smdp_slice")


def is_whole(tensor: Tensor) -> bool:
    """Returns whether a tensor is an argument of a SequenceRegion that was not gathered."""
    return getattr(tensor, "_smdp_is_whole", False)


def linear_of_gathered(whole: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns a linear layer's output for a gathered input. Backward gathers the input again."""
    part, again = cast("Any", whole)._smdp_slice
    return _Linear.apply(whole, part, weight, bias, again)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, again: _Gathered) -> Tensor:
        ctx.again = again
        return part.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.again.whole = None
        return gradients[0], None


class _Linear(torch.autograd.Function):
    """A linear layer that keeps a slice of its input for backward."""

    @staticmethod
    def forward(
        ctx: Any, whole: Tensor, part: Tensor, weight: Tensor, bias: Tensor | None, again: _Gathered
    ) -> Tensor:
        ctx.save_for_backward(part, weight)
        ctx.again, ctx.bias_dtype = again, None if bias is None else bias.dtype
        return torch.nn.functional.linear(whole, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        part, weight = ctx.saved_tensors
        (gradient,) = gradients
        rows = gradient.flatten(0, -2)
        of_whole = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_whole = (gradient @ weight.to(gradient.dtype)).to(part.dtype)
        if ctx.needs_input_grad[2]:
            whole = ctx.again.again(part, gradient.dtype)
            of_weight = (rows.t() @ whole.flatten(0, -2)).to(weight.dtype)
        if ctx.bias_dtype is not None and ctx.needs_input_grad[3]:
            of_bias = rows.sum(0).to(ctx.bias_dtype)
        return of_whole, None, of_weight, of_bias, None


def _with_hidden(change: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Changes the first argument that is a tensor of activations, (batch, sequence, width)."""
    for place, value in enumerate(args):
        if _is_hidden(value):
            return (*args[:place], change(value), *args[place + 1 :]), kwargs
    for name, value in kwargs.items():
        if _is_hidden(value):
            return args, {**kwargs, name: change(value)}
    return args, kwargs


def _is_hidden(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point()
