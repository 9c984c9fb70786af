"""The options of groups of which a rank owns nothing, and which its optimizer therefore never changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

Options = dict[str, Any]


def own_options(groups: Sequence[Options], pieces: Sequence[Sequence[Parameter]]) -> list[Options | None]:
    """Returns the numbers among each group's options, or None for a group without pieces on this rank.

    Args:
        groups: The groups of the optimizer.
        pieces: This rank's pieces of each group.
    """
    return [
        {key: value for key, value in group.items() if isinstance(value, int | float | Tensor)}
        if own
        else None
        for group, own in zip(groups, pieces, strict=True)
    ]


def take_options(groups: Sequence[Options], told: Sequence[list[Options | None]], rank: int) -> None:
    """Changes the options of groups without pieces on this rank to those of the first rank that has some.

    Args:
        groups: The groups of the optimizer.
        told: What `own_options()` has returned on each rank.
        rank: The place of this rank among them.
    """
    for number, group in enumerate(groups):
        found = next((options[number] for options in told if options[number] is not None), None)
        if told[rank][number] is None and found is not None:
            for key, value in found.items():
                if not _is_same(group.get(key), value):
                    group[key] = value


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return bool(torch.equal(one, other))
    return one is other or (type(one) is type(other) and bool(one == other))
