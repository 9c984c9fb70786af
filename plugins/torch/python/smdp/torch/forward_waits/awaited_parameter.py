"""The class of a parameter whose new values are awaited."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._pytree import tree_leaves

_ATTRIBUTES = (
    "_backward_hooks",
    "_base",
    "_version",
    "device",
    "dtype",
    "grad",
    "grad_fn",
    "is_cpu",
    "is_cuda",
    "is_leaf",
    "is_meta",
    "is_nested",
    "is_quantized",
    "is_sparse",
    "is_sparse_csr",
    "itemsize",
    "layout",
    "name",
    "nbytes",
    "ndim",
    "requires_grad",
    "retains_grad",
    "shape",
)
# What answers without the new values, because it does not depend on them.
_INDEPENDENT = frozenset(
    [
        *(getattr(Tensor, name).__get__ for name in _ATTRIBUTES),
        Tensor.grad.__set__,
        Tensor.grad.__delete__,
        Tensor.requires_grad.__set__,
        Tensor._backward_hooks.__set__,
        Tensor.__len__,
        Tensor.dim,
        Tensor.element_size,
        Tensor.get_device,
        Tensor.is_complex,
        Tensor.is_contiguous,
        Tensor.is_floating_point,
        Tensor.is_inference,
        Tensor.is_same_size,
        Tensor.is_shared,
        Tensor.nelement,
        Tensor.numel,
        Tensor.register_hook,
        Tensor.register_post_accumulate_grad_hook,
        Tensor.requires_grad_,
        Tensor.retain_grad,
        Tensor.size,
        Tensor.storage_offset,
        Tensor.stride,
        torch.empty_like,
        torch.is_complex,
        torch.is_floating_point,
        torch.numel,
        torch.ones_like,
        torch.zeros_like,
    ]
)


class Awaits(Protocol):
    """Brings awaited parameters up to date."""

    def read(self, parameter: Parameter, *, is_direct: bool) -> None:
        """Brings a parameter that is read up to date."""


class AwaitedParameter(Parameter):
    """A parameter that gets its new values when a function of torch reads it, and then is a plain one.

    torch's `__torch_function__` protocol calls it first, on any thread. Code below Python, such as a compiled
    extension or `torch.func`, does not use the protocol.
    """

    smdp_awaits: Awaits

    @staticmethod
    def __new__(cls: Any, data: Any = None, requires_grad: bool = True) -> Parameter:
        """Creates a plain parameter: what copies `type(parameter)` has its values already."""
        return Parameter(data, requires_grad)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Finishes the parameters among the arguments of a function that reads values, and calls it."""
        kwargs = kwargs or {}
        if func in _INDEPENDENT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        for one in awaited_in((args, kwargs)):
            finish(one)
        found = func(*args, **kwargs)
        if func is Tensor.detach and sys._getframe(1).f_code is _NEW_PARAMETER:
            # It compares the class of the result with that of the parameter, which is a plain one by now.
            return Tensor._make_subclass(Parameter, found)
        return found

    def as_subclass(self, cls: Any) -> Any:
        """Returns the new values in another class. torch's own method does not use the protocol."""
        finish(self)
        return Parameter.as_subclass(self, cls)

    def __deepcopy__(self, memo: Any) -> Parameter:
        """Copies the new values. torch's own method would copy the class."""
        finish(self)
        return Parameter.__deepcopy__(self, memo)


_NEW_PARAMETER = Parameter.__new__.__code__


def awaited_in(values: Any) -> list[AwaitedParameter]:
    """Returns the awaited parameters in nested containers."""
    return [one for one in tree_leaves(values) if type(one) is AwaitedParameter]


def finish(parameter: Parameter, *, is_direct: bool = False) -> None:
    """Brings an awaited parameter up to date, if nothing else has.

    Args:
        parameter: The parameter.
        is_direct: Whether code below Python reads it.
    """
    if (awaits := parameter.__dict__.get("smdp_awaits")) is not None:
        awaits.read(parameter, is_direct=is_direct)
