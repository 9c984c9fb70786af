"""The variables of models and optimizers, with those that ranks share told from their own seeds."""

from __future__ import annotations

from typing import Any


def optimizer_variables(optimizer: Any) -> list[Any]:
    """Returns all variables of an optimizer; Keras 2 has a method for it."""
    return list(optimizer.variables() if callable(optimizer.variables) else optimizer.variables)


def shared_variables(model: Any) -> list[Any]:
    """Returns the variables of a model that all ranks have alike."""
    return [one for one in model.variables if not _is_seed(one)]


def seeds_of(model: Any) -> list[Any]:
    """Returns the variables of a model that each rank draws random numbers from."""
    return [one for one in model.variables if _is_seed(one)]


def _is_seed(variable: Any) -> bool:
    """Returns whether Keras 3 draws dropout from it: all ranks would have the same masks, were it shared."""
    return getattr(variable, "name", "") == "seed_generator_state"
