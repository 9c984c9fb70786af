"""Parameters as the core's reducer knows them, and whether a gradient fits what it knows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.nn import Parameter

from smdp.torch.process_group.tensors import DTYPES


class Registered(NamedTuple):
    """A parameter when the reducer was made; it may be cast later."""

    name: str
    dtype: torch.dtype
    elements: int


def described(
    registered: Sequence[Registered], parameters: Sequence[Parameter], sparse: Collection[int]
) -> list[tuple[str, int, int, str]]:
    """Returns what the core is told of each parameter; sparse gradients have no place in its buffers."""
    return [
        (name, 0, DTYPES[dtype], f"{shape_of(one)} with sparse gradients")
        if index in sparse
        else (name, numel, DTYPES[dtype], shape_of(one))
        for index, ((name, dtype, numel), one) in enumerate(zip(registered, parameters, strict=True))
    ]


def check_unchanged(registered: Registered, parameter: Parameter | Tensor) -> None:
    """Checks that a parameter has the dtype and size that it was registered with.

    Raises:
        RuntimeError: It was cast or resized.
    """
    name, dtype, numel = registered
    if parameter.dtype is not dtype or parameter.numel() != numel:
        raise RuntimeError(
            f"[smdp] parameter {name!r} was {dtype} of {numel} elements when the model was wrapped and "
            f"is {parameter.dtype} of {parameter.numel()} now: it was cast or resized after wrapping. "
            "Wrap the model anew."
        )


def check_gradient(registered: Registered, parameter: Parameter | Tensor, grad: Tensor) -> None:
    """Checks that a parameter is unchanged, and that its gradient has the same dtype and size.

    Raises:
        RuntimeError: One of them differs.
    """
    check_unchanged(registered, parameter)
    name, dtype, numel = registered
    if grad.dtype is not dtype or grad.numel() != numel:
        raise RuntimeError(
            f"[smdp] the gradient of parameter {name!r} is {grad.dtype} of {grad.numel()} elements, the "
            f"parameter {dtype} of {numel}; smdp's DistributedDataParallel and pipelines average gradients "
            "of their parameter's dtype. Leave grad_dtype alone, or use torch's class with smdp as its"
            " backend."
        )


def refuse_device(name: str, grad: Tensor) -> NoReturn:
    """Refuses a gradient outside of host memory, where the reducer reads gradients.

    Raises:
        RuntimeError: Always.
    """
    raise RuntimeError(
        f"[smdp] the gradient of parameter {name!r} is on {grad.device}, but its parameter was on "
        "the CPU when the model was wrapped. Move the model first, then wrap it (or make the "
        "optimizer)."
    )


def refuse_sparse(name: str, grad: Tensor) -> NoReturn:
    """Refuses a sparse gradient of a parameter that the reducer knows as dense.

    Raises:
        RuntimeError: Always.
    """
    raise RuntimeError(
        f"[smdp] the gradient of parameter {name!r} is {grad.layout}, but no nn.Embedding or"
        " nn.EmbeddingBag had it with sparse=True when the model was wrapped. Make the gradient"
        " dense, or derive the module that has the parameter from nn.Embedding, set its `sparse`"
        " to True, and then wrap the model with DistributedDataParallel."
    )


def has_same_order(grad: Tensor, parameter: Tensor) -> bool:
    """Returns whether the elements of a gradient lie in memory in the order of its parameter."""
    if grad.is_contiguous() and parameter.is_contiguous():  # a tenth of the time of what follows
        return True
    return grad.stride() == parameter.stride() and bool(torch.ops.aten.is_non_overlapping_and_dense(grad))


def shape_of(parameter: Tensor) -> str:
    """Returns what ranks compare: elements are summed in their order in memory."""
    steps = [step for step, extent in zip(parameter.stride(), parameter.shape, strict=True) if extent != 1]
    strides = "" if parameter.is_contiguous() else f" with strides {steps}"
    return f"{list(parameter.shape)}{strides}"
