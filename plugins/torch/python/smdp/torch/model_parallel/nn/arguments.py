"""Checks of the arguments of distributed transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def check_norms(pre: bool, post: bool) -> None:
    """Checks that a layer has a layer norm.

    Raises:
        ValueError: It has none.
    """
    if not pre and not post:
        raise ValueError(
            "[smdp] pre_layernorm and post_layernorm are both False; at least one of them must be True"
        )


def checked_tuple(layer: Any, given: Any, names: Sequence[str], *optional: str) -> tuple[Any, ...]:
    """Returns the items of the one argument that a layer takes.

    Args:
        layer: The layer.
        given: Its argument.
        names: The names of the items.
        *optional: The names of items that may follow.

    Raises:
        ValueError: It is not a tuple with these items.
    """
    kind = type(layer).__name__
    if not isinstance(given, (tuple, list)):
        hint = "; pass None as the mask if there is none" if isinstance(given, Tensor) else ""
        raise ValueError(
            f"[smdp] smp.nn.{kind} takes one tuple, ({', '.join(names)}), and got a"
            f" {type(given).__name__}{hint}"
        )
    if not len(names) <= len(given) <= len(names) + len(optional):
        raise ValueError(
            f"[smdp] smp.nn.{kind} takes a tuple of {len(names)}, ({', '.join(names)}), and got {len(given)}"
            " items"
        )
    return tuple(given)
