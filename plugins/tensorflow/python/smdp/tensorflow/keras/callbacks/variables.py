"""The variables of models and optimizers: those that all ranks share, and the seeds of each rank."""

from __future__ import annotations

from typing import Any


def optimizer_variables(optimizer: Any) -> list[Any]:
    """Returns all variables of an optimizer, for which Keras 2 has a method."""
    return list(optimizer.variables() if callable(optimizer.variables) else optimizer.variables)


def shared_variables(model: Any) -> list[Any]:
    """Returns the variables of a model that are the same on all ranks."""
    return [one for one in model.variables if not _is_seed(one)]


def seeds_of(model: Any) -> list[Any]:
    """Returns the variables of a model from which each rank draws random numbers."""
    return [one for one in model.variables if _is_seed(one)]


def _is_seed(variable: Any) -> bool:
    """Returns whether a variable is a seed of Keras 3. If it were shared, dropout masks would be the same."""
    return getattr(variable, "name", "") == "seed_generator_state"
