"""Checks of the options for gradient reduction."""

from __future__ import annotations

import math
import numbers

_BYTE = 2.0**-20
_MOST = 2.0**30
COMPRESSIONS = ("none", "fp16", "bf16", "int8", "topk")
KEEPING_COMPRESSIONS = ("int8", "topk")  # they keep what they have not sent for later steps


def check_reducer_options(
    owner: str,
    compression: str,
    bucket_cap_mb: float | None,
    *,
    topk_ratio: float = 0.01,
    topk_momentum: float = 0.0,
) -> None:
    """Checks the options of the gradient reducer.

    Args:
        owner: The class or function that received the options, for the message.
        compression: "none", "fp16", "bf16", "int8" or "topk".
        bucket_cap_mb: A size in MiB, or None.
        topk_ratio: A number above 0 and at most 1.
        topk_momentum: A number of at least 0 and below 1; not 0 for "topk" only.

    Raises:
        ValueError: An option is out of range.
    """
    if compression not in COMPRESSIONS:
        allowed = ", ".join(COMPRESSIONS)
        raise ValueError(f"[smdp] {owner}: compression is {compression!r}; allowed: {allowed}.")
    if bucket_cap_mb is not None and not (_is_number(bucket_cap_mb) and _BYTE <= bucket_cap_mb <= _MOST):
        raise ValueError(
            f"[smdp] {owner}: bucket_cap_mb is {bucket_cap_mb!r}; it must be a number of MiB, at least one"
            " byte (2**-20) and at most 2**30."
        )
    if not (_is_number(topk_ratio) and 0 < topk_ratio <= 1):
        raise ValueError(
            f"[smdp] {owner}: topk_ratio is {topk_ratio!r}; it must be a number above 0 and at most 1."
        )
    if not (_is_number(topk_momentum) and 0 <= topk_momentum < 1):
        raise ValueError(
            f"[smdp] {owner}: topk_momentum is {topk_momentum!r}; it must be a number of at least 0 and"
            " below 1."
        )
    if topk_momentum and compression != "topk":
        raise ValueError(
            f"[smdp] {owner}: topk_momentum is {topk_momentum!r} with compression {compression!r}, but it"
            " replaces the optimizer's momentum for 'topk' only. Remove it and set the momentum in the"
            " optimizer."
        )


def check_rows_have_no_momentum(topk_momentum: float) -> None:
    """Checks that a model with sparse gradients uses no momentum correction.

    Raises:
        ValueError: `topk_momentum` is not 0.
    """
    if topk_momentum:
        raise ValueError(
            f"[smdp] topk_momentum is {topk_momentum!r}, but some gradients are sparse, and momentum would"
            " make all of their rows nonzero. Remove topk_momentum, or set sparse=False in the embeddings."
        )


def check_factor(factor: float) -> None:
    """Checks a factor for the loss scale.

    Raises:
        ValueError: `factor` is not a finite number above 0.
    """
    if not (_is_number(factor) and 0 < factor < math.inf):
        raise ValueError(f"[smdp] rescale_residuals({factor!r}): the factor must be a finite number above 0.")


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
