"""How a class of Hugging Face's models is replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

State = Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """A class of models, and its substitute.

    Attributes:
        substitute: The class of the substitutes.
        arguments: Returns keyword arguments for the substitute, given a module.
        to_ours: Translates a state dict of the module to the names of the substitute.
        to_theirs: The reverse.
        caller: Returns a function that calls the substitute as the module is called, given its forward.
        widths: Returns the sizes that must be divisible, by name, given a module's configuration.
        problem: Returns why a module is not supported, given its configuration, or None.
    """

    substitute: type[nn.Module]
    arguments: Callable[[Any], dict[str, Any]]
    to_ours: Callable[[State], dict[str, Any]]
    to_theirs: Callable[..., dict[str, Any]]
    caller: Callable[[Callable[..., Any]], Callable[..., Any]]
    widths: Callable[[Any], dict[str, int]]
    problem: Callable[[Any], str | None] = lambda config: None


def cross_attention_problem(config: Any) -> str | None:
    """Returns a reason if a model has cross attention."""
    return "it has cross attention" if getattr(config, "add_cross_attention", False) else None
