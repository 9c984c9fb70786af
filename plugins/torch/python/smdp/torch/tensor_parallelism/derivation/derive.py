"""Derives the division of a model for which there is neither a rule nor a plan."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import nn

from smdp.torch.tensor_parallelism.actions.action import Action
from smdp.torch.tensor_parallelism.actions.attributes import Attributes
from smdp.torch.tensor_parallelism.actions.whole_modules import PartialGradient
from smdp.torch.tensor_parallelism.derivation.candidates import guesses
from smdp.torch.tensor_parallelism.derivation.trial import Trial
from smdp.torch.tensor_parallelism.layers.linear import inputs_of, is_linear, linear_problem

# Layers of a candidate are at most this far below it: children, and children of children.
_DEPTH = 2
# A module with more whole layers is a part of a model, not one layer of it.
_MOST_LAYERS = 12
_ALONE = "no other linear layer fits it"
# Guesses for one layer of attention or one pair of linear layers.
_MOST_GUESSES = 60


@dataclass
class Derivation:
    """A derived division.

    Attributes:
        actions: What happens, by the name of the module.
        reasons: Why linear layers stay whole, by name.
    """

    actions: dict[str, Action] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass
class _Found:
    """What has been found for one module, by names in it."""

    actions: dict[str, Action] = field(default_factory=dict)
    layers: set[str] = field(default_factory=set)
    problem: str = ""


def derive(model: nn.Module, size: int, skipped: nn.Module | None = None) -> Derivation:
    """Finds linear layers that can be divided together, and tries each division against the whole module.

    A division is a row-parallel layer and the column-parallel layers before it, between which only
    elementwise operations, views by heads and attention may stand. Modules are searched from the inside out.
    No rank communicates, and all ranks find the same.

    Args:
        model: The model. It stays as it is.
        size: The number of ranks.
        skipped: A layer that is divided otherwise, such as the head of a language model.
    """
    shared = _shared(model)
    found = Derivation()
    linears: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear) and not is_linear(module):
            continue
        problem = linear_problem(module)
        if problem is None and id(module) in shared:
            problem = "another module shares its weight"
        if problem is not None:
            found.reasons[name] = problem
        elif module is not skipped:
            linears[name] = module
            found.reasons[name] = _ALONE
    known: dict[Hashable, _Found] = {}
    used: set[str] = set()
    with torch.random.fork_rng(devices=[]):
        for name, module in reversed(list(model.named_modules())):
            prefix = f"{name}." if name else ""
            inside = {
                each.removeprefix(prefix): layer
                for each, layer in linears.items()
                if each.startswith(prefix) and each not in used
            }
            inside = {each: layer for each, layer in inside.items() if each.count(".") < _DEPTH}
            if not 2 <= len(inside) <= _MOST_LAYERS or type(module).forward is nn.Module.forward:
                continue
            key = (_structure(module), tuple(inside))
            if key not in known:
                known[key] = _divide(module, inside, size)
            one = known[key]
            for each, action in one.actions.items():
                found.actions[(prefix + each).rstrip(".")] = action
            used |= {prefix + each for each in one.layers}
            for each in inside:
                # The innermost module knows best why.
                if each not in one.layers and found.reasons[prefix + each] == _ALONE:
                    found.reasons[prefix + each] = one.problem or _ALONE
    _switch_off_shortcuts(model, found.actions)
    found.actions = {name: found.actions[name] for name, _ in model.named_modules() if name in found.actions}
    found.reasons = {name: reason for name, reason in found.reasons.items() if name not in used}
    return found


def _divide(module: nn.Module, linears: Mapping[str, nn.Module], size: int) -> _Found:
    """Finds divisions of a module's layers: the first one, then others among the rest."""
    found = _Found()
    try:
        trial = Trial(module, list(dict.fromkeys(map(inputs_of, linears.values()))))
    except Exception as error:  # noqa: BLE001 - any error of the module's own code
        found.problem = f"{type(module).__name__} cannot be called with a random input: {error}"
        return found
    rest = dict(linears)
    while len(rest) > 1:
        before, has_run = len(rest), False
        for guess in islice(guesses(module, rest, size), _MOST_GUESSES):
            problem = guess.problem(rest, size)
            if problem is not None:
                found.problem = found.problem or problem
                continue
            actions = guess.actions(found.actions)
            outcome = trial.outcome(actions, size)
            if outcome.partial and not set(outcome.partial) & actions.keys():
                actions |= dict.fromkeys(outcome.partial, PartialGradient())
                outcome = trial.outcome(actions, size)
            if outcome.problem is None and not outcome.partial:
                found.actions = actions
                found.layers |= guess.names
                rest = {name: layer for name, layer in rest.items() if name not in guess.names}
                break
            # Of all problems, a difference in results says most.
            if not found.problem or (outcome.ran and not has_run):
                has_run = outcome.ran
                found.problem = (
                    f"no division gives the results of the whole {type(module).__name__}; of"
                    f" {', '.join(guess.columns)} and {guess.row}:"
                    f" {outcome.problem or 'the gradients of its own parameters are partial'}"
                )
        if len(rest) == before:
            break
    return found


def _shared(model: nn.Module) -> set[int]:
    """Returns the modules that share a parameter with another one."""
    holders: dict[int, list[int]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                holders.setdefault(id(parameter), []).append(id(module))
    return {holder for found in holders.values() if len(found) > 1 for holder in found}


def _structure(module: nn.Module) -> Hashable:
    """Returns a value that is equal for modules that compute the same from their parameters."""
    parts: list[Hashable] = [repr(module)]
    for child in module.modules():
        for name, value in vars(child).items():
            if name in ("_parameters", "_buffers", "_modules"):
                held: dict[str, Any] = value
                parts.append(
                    (name, *((key, getattr(each, "shape", None) is None) for key, each in held.items()))
                )
            elif isinstance(value, (int, float, str, bool, type(None))):
                parts.append((name, value))
            elif value not in ({}, [], (), set()):
                parts.append((name, id(value)))
    return tuple(parts)


def _switch_off_shortcuts(model: nn.Module, actions: dict[str, Action]) -> None:
    """Keeps torch's TransformerEncoder from packing sequences for layers that then take their slow path."""
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        has_divided = any(each.startswith(prefix) for each in actions)
        if getattr(module, "use_nested_tensor", False) and has_divided and name not in actions:
            actions[name] = Attributes({"use_nested_tensor": False})
