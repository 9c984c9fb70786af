"""Parameters that several modules share, which all of them must divide in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from smdp.torch.tensor_parallelism.actions.action import Action
from smdp.torch.tensor_parallelism.actions.embeddings import Vocabulary
from smdp.torch.tensor_parallelism.actions.linears import Columns, Head
from smdp.torch.tensor_parallelism.actions.whole_modules import PartialGradient, Region


def check_ties(model: nn.Module, actions: Mapping[str, Action], degree: int) -> None:
    """Checks that the users of a shared parameter divide it in the same way, or all leave it whole.

    Raises:
        ValueError: They do not.
    """
    for parameter, users in _shared_parameters(model).items():
        cuts = {user: _cut_by(actions.get(user)) for user in users}
        first, *others = users
        for other in others:
            if cuts[other] != cuts[first]:
                both = {user: _described(actions.get(user), degree) for user in (first, other)}
                raise ValueError(
                    f"[smdp] tensor_parallel: modules {first!r} and {other!r} share parameter {parameter!r},"
                    f" but the plan divides it in different ways: {both}. Divide both by the same"
                    ' dimension, as "embedding_rowwise" and "colwise_gather_output", or leave both whole.'
                )


def _shared_parameters(model: nn.Module) -> dict[str, list[str]]:
    """Returns the users of each shared parameter, by the name of the parameter.

    Only modules without children are users. Others often hold a parameter that only a child uses, as the
    head of BERT holds the bias of its decoder.
    """
    users: dict[int, list[str]] = {}
    names: dict[int, str] = {}
    for module_name, module in model.named_modules():
        if next(module.children(), None) is not None:
            continue
        for name, parameter in module._parameters.items():
            if parameter is not None:
                users.setdefault(id(parameter), []).append(module_name)
                names.setdefault(id(parameter), f"{module_name}.{name}")
    return {names[key]: found for key, found in users.items() if len(found) > 1}


def _cut_by(action: Action | None) -> Any:
    """Returns a value that is equal for actions that cut a shared parameter in the same way."""
    if action is None or isinstance(action, (PartialGradient, Region)):
        return None
    is_plain = isinstance(action, Columns) and all(each.units == each.length for each in action.blocks or ())
    if isinstance(action, (Vocabulary, Head)) or (
        is_plain and len(getattr(action, "blocks", None) or ()) < 2
    ):
        return "evenly by rows"
    return action


def _described(action: Action | None, degree: int) -> str:
    return "whole" if action is None else action.describe(degree)
