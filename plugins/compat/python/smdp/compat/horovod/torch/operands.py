"""What a collective takes: one tensor, with rows where it goes along the first dimension."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def check_tensor(call: str, tensor: Any) -> None:
    """Refuse what is no tensor.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"[smdp] {call} got a {type(tensor).__name__} in place of a tensor. Give torch.as_tensor(...) of"
            " it."
        )


def check_rows(call: str, tensor: Any) -> None:
    """Refuse what has no first dimension.

    Raises:
        TypeError: It is no tensor.
        ValueError: It is a scalar.
    """
    check_tensor(call, tensor)
    if tensor.dim() == 0:
        raise ValueError(
            f"[smdp] {call} goes along the first dimension, and this tensor is a scalar. Give"
            " tensor.reshape(1)."
        )
