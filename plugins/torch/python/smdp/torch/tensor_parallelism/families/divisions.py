"""Divisions of modules by their class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import nn

from smdp.torch.tensor_parallelism.actions.action import Action


@dataclass(frozen=True)
class Division:
    """How a module and its children are divided.

    Attributes:
        children: What happens to children, by name. Names that a module lacks are skipped.
        attributes: New values of the module's attributes that its code reads, such as its number of heads.
        config: New values in a copy of the module's configuration.
        head_inputs: Keyword arguments of the module's forward that have all heads.
        heads: The number of heads of all ranks, if there are `head_inputs`.
        joined_heads: The number of a rank's heads, if attention weights are (batch x heads, queries, keys).
        is_region: Whether the module has code between divided layers.
    """

    children: Mapping[str, Action]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    head_inputs: tuple[str, ...] = ()
    heads: int = 0
    joined_heads: int = 0
    is_region: bool = True


Rule: TypeAlias = "Callable[[nn.Module, int], Division]"
"""Returns how a module of a class is divided over a number of ranks."""


def per_rank(count: int, size: int) -> int:
    """Returns how many of `count` units a rank holds: at least one, which it may share with other ranks."""
    return max(1, count // size)
