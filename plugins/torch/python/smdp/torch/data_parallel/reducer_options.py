"""What may be asked of gradient reduction, checked before anything is made of it."""

from __future__ import annotations

import math
import numbers

_BYTE = 2.0**-20
_MOST = 2.0**30
COMPRESSIONS = ("none", "fp16", "bf16", "int8", "topk")


def check_reducer_options(
    owner: str,
    compression: str,
    bucket_cap_mb: float | None,
    *,
    topk_ratio: float = 0.01,
    topk_momentum: float = 0.0,
) -> None:
    """Refuse wrong options of the gradient reducer before anything is made of them.

    Raises:
        ValueError: One is wrong; the message begins with the owner.
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
            f"[smdp] {owner}: topk_momentum is {topk_momentum!r} with compression {compression!r}; it takes"
            " the place of the optimizer's momentum for 'topk' only. Leave it out, and give the optimizer its"
            " momentum."
        )


def check_rows_have_no_momentum(topk_momentum: float) -> None:
    """Refuses momentum correction where there are sparse gradients.

    Raises:
        ValueError: It is not 0.
    """
    if topk_momentum:
        raise ValueError(
            f"[smdp] topk_momentum is {topk_momentum!r}, but some gradients are sparse, and a momentum would"
            " keep all of their rows. Leave it out, or set sparse=False in the embeddings."
        )


def check_factor(factor: float) -> None:
    """Refuse what no loss scale can be multiplied by.

    Raises:
        ValueError: It is not a number above 0.
    """
    if not (_is_number(factor) and 0 < factor < math.inf):
        raise ValueError(f"[smdp] rescale_residuals({factor!r}): the factor must be a number above 0.")


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
