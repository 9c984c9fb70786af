"""Parameters as registered with the core's reducer, and checks of gradients against them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.nn import Parameter

from smdp.torch.process_group.tensors import DTYPES


class Registered(NamedTuple):
    """A parameter at the time when the reducer was created."""

    name: str
    dtype: torch.dtype
    elements: int


def described(
    registered: Sequence[Registered], parameters: Sequence[Parameter], sparse: Collection[int]
) -> list[tuple[str, int, int, str]]:
    """Returns the core's description of each parameter: name, element count, dtype and shape.

    Parameters with sparse gradients have 0 elements, because their gradients do not use the fusion buffers.
    """
    return [
        (name, 0, DTYPES[dtype], f"{shape_of(one)} with sparse gradients")
        if index in sparse
        else (name, numel, DTYPES[dtype], shape_of(one))
        for index, ((name, dtype, numel), one) in enumerate(zip(registered, parameters, strict=True))
    ]


def check_unchanged(registered: Registered, parameter: Parameter | Tensor) -> None:
    """Checks that a parameter has the dtype and size that it was registered with.

    Raises:
        RuntimeError: The parameter was cast or resized.
    """
    name, dtype, numel = registered
    if parameter.dtype is not dtype or parameter.numel() != numel:
        raise RuntimeError(
            f"[smdp] parameter {name!r} was {dtype} of {numel} elements when the model was wrapped and "
            f"is {parameter.dtype} of {parameter.numel()} now: it was cast or resized after wrapping. "
            "Wrap the model again."
        )


def check_gradient(registered: Registered, parameter: Parameter | Tensor, grad: Tensor) -> None:
    """Checks that a parameter is unchanged, and that its gradient has the same dtype and size.

    Raises:
        RuntimeError: The parameter has changed, or its gradient differs.
    """
    check_unchanged(registered, parameter)
    name, dtype, numel = registered
    if grad.dtype is not dtype or grad.numel() != numel:
        raise RuntimeError(
            f"[smdp] the gradient of parameter {name!r} is {grad.dtype} of {grad.numel()} elements, but the"
            f" parameter is {dtype} of {numel}. smdp's DistributedDataParallel and pipelines need gradients"
            " in the dtype of their parameter. Do not set grad_dtype, or use torch's DistributedDataParallel"
            " with the backend 'smdp'."
        )


def refuse_device(name: str, grad: Tensor) -> NoReturn:
    """Refuses a gradient outside host memory, where the reducer cannot read it.

    Raises:
        RuntimeError: Always.
    """
    raise RuntimeError(
        f"[smdp] the gradient of parameter {name!r} is on {grad.device}, but its parameter was on "
        "the CPU when the model was wrapped. Move the model first, then wrap it (or create the "
        "optimizer)."
    )


def refuse_sparse(name: str, grad: Tensor) -> NoReturn:
    """Refuses a sparse gradient of a parameter that is registered as dense.

    Raises:
        RuntimeError: Always.
    """
    raise RuntimeError(
        f"[smdp] the gradient of parameter {name!r} is {grad.layout}, but the parameter did not belong to an"
        " nn.Embedding or nn.EmbeddingBag with sparse=True when the model was wrapped. Make the gradient"
        " dense, or derive the parameter's module from nn.Embedding, set its `sparse` to True, and then"
        " wrap the model in DistributedDataParallel."
    )


def has_same_order(grad: Tensor, parameter: Tensor) -> bool:
    """Returns whether the elements of a gradient lie in memory in the order of its parameter."""
    if grad.is_contiguous() and parameter.is_contiguous():  # ten times faster than the check below
        return True
    return grad.stride() == parameter.stride() and bool(torch.ops.aten.is_non_overlapping_and_dense(grad))


def shape_of(parameter: Tensor) -> str:
    """Returns the shape and strides that ranks compare, since elements are summed in memory order."""
    steps = [step for step, extent in zip(parameter.stride(), parameter.shape, strict=True) if extent != 1]
    strides = "" if parameter.is_contiguous() else f" with strides {steps}"
    return f"{list(parameter.shape)}{strides}"
