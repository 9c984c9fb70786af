"""Values, which are tensors of one stage: all ranks know owner and shape, and one rank has the contents."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import Parameter
from torch.overrides import handle_torch_function


@dataclass(eq=False, slots=True)
class Value:
    """A tensor computed by an operation of one stage; the description is the same on every rank.

    Attributes:
        index: Index among all values of the program.
        stage: The virtual stage that holds the tensor.
        ghost: The placeholder, with shape, dtype, device and requires_grad, but no contents.
        consumers: The later stages that use it, each once, in the order in which the program reaches them.
        sources: The values from which autograd derived it.
        is_in_loss: Whether the loss depends on it through autograd; known once the program has been recorded.
        is_handed_round: Whether all ranks get it, because the host reads it or the program returns it.
        shape: The shape of the placeholder.
        dtype: The dtype of the placeholder.
        strides: The strides with which it is sent, as learned from its owner. None: those of the placeholder.
        gradient_strides: The strides of the gradient that each consumer sends back, as learned from the
            consumer.
    """

    index: int
    stage: int
    ghost: Tensor
    consumers: list[int] = field(default_factory=list)
    sources: tuple[Value, ...] = ()
    is_in_loss: bool = True
    is_handed_round: bool = False
    strides: tuple[int, ...] | None = None
    gradient_strides: dict[int, tuple[int, ...]] = field(default_factory=dict)
    shape: torch.Size = field(init=False)
    dtype: torch.dtype = field(init=False)
    _text: str = field(init=False)

    def __post_init__(self) -> None:
        # Cached because placeholders answer slowly, and each microbatch asks.
        self.shape, self.dtype, self._text = self.ghost.shape, self.ghost.dtype, text_of(self.ghost)

    def consumer_after(self, stage: int) -> int | None:
        """Returns the next stage that uses the value, after its owner or a consumer; None after the last."""
        return min((consumer for consumer in self.consumers if consumer > stage), default=None)

    @property
    def needs_grad(self) -> bool:
        """Whether autograd tracks the value."""
        return bool(self.ghost.requires_grad)

    @property
    def has_gradient(self) -> bool:
        """Whether its consumers send back a gradient."""
        return self.needs_grad and self.is_in_loss

    def text(self) -> str:
        """Returns dtype and shape, as shown in errors."""
        return self._text


@dataclass(eq=False, slots=True)
class Weight:
    """A parameter: its name, the virtual stages that use it, and a weak reference to its pipelined module."""

    name: str
    stages: Container[int]
    pipe: Callable[[], Any] | None = None


def text_of(tensor: Tensor) -> str:
    """Returns dtype and shape, as shown in errors."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def mark(tensor: Tensor, value: Value) -> None:
    """Attaches a Value to its tensor; a later call replaces the earlier Value."""
    if isinstance(tensor, FakeTensor):
        # FakeTensor.tolist reads element by element; ranks with the contents read them at once.
        cast("Any", tensor).tolist = functools.partial(_tolist, weakref.ref(tensor))
    cast("Any", tensor)._smdp_value = value


def _tolist(ghost: Callable[[], Tensor | None]) -> Any:
    tensor = ghost()
    return handle_torch_function(Tensor.tolist, (tensor,), tensor)


def value_of(tensor: Tensor) -> Value | None:
    """Returns the Value attached by mark(), or None if the tensor is replicated on every rank."""
    return getattr(tensor, "_smdp_value", None)


def mark_writer(tensor: Tensor, stage: int) -> None:
    """Records that a stage has changed a tensor that all ranks have, so that other copies are outdated."""
    cast("Any", tensor)._smdp_writer = stage


def writer_of(tensor: Tensor) -> int | None:
    """Returns the stage recorded by mark_writer(), or the stage of the tensor's Value, or None."""
    value = value_of(tensor)
    found: int | None = getattr(tensor, "_smdp_writer", None) if value is None else value.stage
    return found


def mark_weight(parameter: Parameter, weight: Weight) -> None:
    """Attaches the stages that use a parameter."""
    cast("Any", parameter)._smdp_weight = weight


def unmark_weight(parameter: Parameter) -> None:
    """Removes the mark of mark_weight()."""
    del cast("Any", parameter)._smdp_weight


def weight_of(tensor: Tensor) -> Weight | None:
    """Returns the Weight attached by mark_weight(), or None."""
    return getattr(tensor, "_smdp_weight", None)


def memory_of(tensor: Tensor) -> int:
    """Returns a number that tensors which share memory have in common."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse, or inside torch.func
        return id(tensor)
