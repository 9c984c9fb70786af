"""Checks of the tensors that are passed to collectives."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def check_tensor(call: str, tensor: Any) -> None:
    """Checks that an argument is a tensor.

    Raises:
        TypeError: It is not a tensor.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"[smdp] {call} got a {type(tensor).__name__} instead of a tensor. Convert it with"
            " torch.as_tensor(...)."
        )


def check_rows(call: str, tensor: Any) -> None:
    """Checks that an argument is a tensor with at least one dimension.

    Raises:
        TypeError: It is not a tensor.
        ValueError: It is a scalar.
    """
    check_tensor(call, tensor)
    if tensor.dim() == 0:
        raise ValueError(
            f"[smdp] {call} works along the first dimension, but this tensor is a scalar. Pass"
            " tensor.reshape(1)."
        )
