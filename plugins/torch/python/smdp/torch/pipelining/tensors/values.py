"""What is known of a tensor that belongs to one stage: on all ranks its owner, on one its contents."""

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
    """A tensor made by an operation of one stage, the same on every rank.

    Attributes:
        index: Place among all values of the program.
        stage: The virtual stage that holds it.
        ghost: The placeholder: shape, dtype, device, whether it has a gradient; no contents.
        consumers: Later stages that use it, each once, in the order in which the program meets them.
        sources: The values that autograd made it from.
        is_in_loss: The loss depends on it through autograd; known once the program has been recorded.
        is_handed_round: All ranks get it, as the host reads it or the program returns it.
        shape: Of the placeholder.
        dtype: Of the placeholder.
        strides: Under which it travels; None: those of the placeholder. Learnt from its owner.
        gradient_strides: Of the gradient that each consumer sends back, where it travels. Learnt from it.
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
        # A placeholder takes longer to say it, and each microbatch asks.
        self.shape, self.dtype, self._text = self.ghost.shape, self.ghost.dtype, text_of(self.ghost)

    def consumer_after(self, stage: int) -> int | None:
        """Give the next stage that uses it, after the owner or a consumer."""
        return min((consumer for consumer in self.consumers if consumer > stage), default=None)

    @property
    def needs_grad(self) -> bool:
        """Whether autograd follows it."""
        return bool(self.ghost.requires_grad)

    @property
    def has_gradient(self) -> bool:
        """Whether its consumers send back a gradient."""
        return self.needs_grad and self.is_in_loss

    def text(self) -> str:
        """Give dtype and shape, as errors show them."""
        return self._text


@dataclass(eq=False, slots=True)
class Weight:
    """A parameter: its name, the virtual stages that use it, and (weakly) its pipelined module."""

    name: str
    stages: Container[int]
    pipe: Callable[[], Any] | None = None


def text_of(tensor: Tensor) -> str:
    """Give dtype and shape, as errors show them."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def mark(tensor: Tensor, value: Value) -> None:
    """Note whose tensor this is; a later mark replaces an earlier one."""
    if isinstance(tensor, FakeTensor):
        # Its class reads element by element; ranks that have the contents read at once.
        cast("Any", tensor).tolist = functools.partial(_tolist, weakref.ref(tensor))
    cast("Any", tensor)._smdp_value = value


def _tolist(ghost: Callable[[], Tensor | None]) -> Any:
    tensor = ghost()
    return handle_torch_function(Tensor.tolist, (tensor,), tensor)


def value_of(tensor: Tensor) -> Value | None:
    """Give what mark() noted; None for what every rank has."""
    return getattr(tensor, "_smdp_value", None)


def mark_writer(tensor: Tensor, stage: int) -> None:
    """Note which stage has changed a tensor that all ranks have: the others' copies are out of date."""
    cast("Any", tensor)._smdp_writer = stage


def writer_of(tensor: Tensor) -> int | None:
    """Give what mark_writer() noted, or the stage that a value belongs to."""
    value = value_of(tensor)
    found: int | None = getattr(tensor, "_smdp_writer", None) if value is None else value.stage
    return found


def mark_weight(parameter: Parameter, weight: Weight) -> None:
    """Note which stages use a parameter."""
    cast("Any", parameter)._smdp_weight = weight


def unmark_weight(parameter: Parameter) -> None:
    """Forget what mark_weight() noted."""
    del cast("Any", parameter)._smdp_weight


def weight_of(tensor: Tensor) -> Weight | None:
    """Give what mark_weight() noted."""
    return getattr(tensor, "_smdp_weight", None)


def memory_of(tensor: Tensor) -> int:
    """Give a number that tensors on the same memory have in common."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse, or inside of torch.func
        return id(tensor)
