"""Makes the plan of a model: by smdp's rules for classes, from the model's own plan, or from the user's."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from torch import nn

from smdp.torch.tensor_parallelism.actions.action import Action
from smdp.torch.tensor_parallelism.actions.whole_modules import Region
from smdp.torch.tensor_parallelism.adapters import Adapters
from smdp.torch.tensor_parallelism.derivation.derive import Derivation, derive
from smdp.torch.tensor_parallelism.ends import actions_on_ends, head_of
from smdp.torch.tensor_parallelism.families.rules import rule_of
from smdp.torch.tensor_parallelism.plan import TensorParallelPlan
from smdp.torch.tensor_parallelism.planning_by_words import plan_by_words
from smdp.torch.tensor_parallelism.preconditions import check_degree, check_plan

# The most layers that the error without a plan names.
_MOST_REASONS = 6


def plan_of(
    model: nn.Module, degree: int, plan: str | Mapping[str, str], derived: Derivation | None = None
) -> TensorParallelPlan:
    """Returns the plan of a model.

    Args:
        model: The model, whose modules are whole.
        degree: The number of ranks.
        plan: "auto", or words by patterns of module names, in which * is a number or any part of a name.
        derived: What derivation_of() has found on the rank that tries divisions for all. Default: this rank
            tries them itself if needs_derivation() says so.

    Raises:
        ValueError: The plan is not valid, or there is none for this model.
    """
    check_degree(degree)
    check_plan(plan)
    if degree == 1 and plan == "auto":
        return TensorParallelPlan(type(model).__name__, 1, "a degree of 1")
    adapters = Adapters(model)
    with adapters.removed() as inner:
        found = _plan_without_adapters(inner, degree, plan, derived)
    return adapters.follow(found)


def needs_derivation(model: nn.Module, degree: int, plan: str | Mapping[str, str]) -> bool:
    """Returns whether there is neither a rule nor a plan for any module of a model.

    Raises:
        ValueError: See plan_of().
    """
    check_degree(degree)
    check_plan(plan)
    if degree == 1 or not isinstance(plan, str):
        return False
    with Adapters(model).removed() as inner:
        return not _known_actions(inner, degree)[0]


def derivation_of(model: nn.Module, degree: int) -> Derivation:
    """Tries divisions of a model's layers in this process."""
    with Adapters(model).removed() as inner:
        return derive(inner, degree, head_of(inner))


def _plan_without_adapters(
    model: nn.Module, degree: int, plan: str | Mapping[str, str], derived: Derivation | None
) -> TensorParallelPlan:
    reasons: dict[str, str] = {}
    default = "no rule divides it"
    if not isinstance(plan, str):
        source = "the plan that was passed"
        actions = plan_by_words(model, degree, plan)
    else:
        actions, source = _known_actions(model, degree)
        if not actions:
            source = "trials of its layers"
            derived = derived or derive(model, degree, head_of(model))
            actions = dict(derived.actions)
            reasons, default = derived.reasons, "only linear layers are divided"
        if not actions:
            lines = [f"\n  {name}: {reason}" for name, reason in islice(reasons.items(), _MOST_REASONS)]
            raise ValueError(
                f"[smdp] tensor_parallel: there is no plan for {type(model).__name__} and {degree} ranks."
                ' Pass one, for example plan={"layers.*.up": "colwise", "layers.*.down": "rowwise"}.'
                f"{''.join([' None was derived:', *lines] if lines else [])}"
            )
        actions.update(actions_on_ends(model))
    whole = {
        name: reasons.get(name, default)
        for name, module in model.named_modules()
        if name not in actions and next(module.parameters(recurse=False), None) is not None
    }
    return TensorParallelPlan(type(model).__name__, degree, source, actions, whole)


def _known_actions(model: nn.Module, degree: int) -> tuple[dict[str, Action], str]:
    """Returns what rules and the model's own plan say, and which of both this is."""
    ruled, own = _by_rules(model, degree), _plan_of_model(model)
    actions: dict[str, Action] = {}
    source = "smdp's rules"
    if own:
        source = f"the plan of {type(model).__name__}" + (" and smdp's rules" if ruled else "")
        actions.update(plan_by_words(model, degree, own, is_own=True))
        # A rule is for a module with all that is in it.
        inside = tuple(f"{name}." for name in ruled)
        actions = {name: action for name, action in actions.items() if not name.startswith(inside)}
    actions.update(ruled)
    return actions, source


def _by_rules(model: nn.Module, degree: int) -> dict[str, Action]:
    found: dict[str, Action] = {}
    for name, module in model.named_modules():
        rule = rule_of(module)
        if rule is None:
            continue
        division = rule(module, degree)
        prefix = f"{name}." if name else ""
        for child, action in division.children.items():
            if getattr(module, child, None) is not None:
                found[prefix + child] = action
        if division.is_region:
            found[name] = Region(
                dict(division.attributes),
                dict(division.config),
                head_inputs=division.head_inputs,
                heads=division.heads,
                joined_heads=division.joined_heads,
            )
    return found


def _plan_of_model(model: Any) -> dict[str, str]:
    """Returns the plan of a transformers model: of its base model, and of its own layers."""
    own = dict(getattr(model, "_tp_plan", None) or {})
    base = getattr(getattr(model, "config", None), "base_model_tp_plan", None) or {}
    prefix = getattr(model, "base_model_prefix", "")
    prefix = f"{prefix}." if prefix and hasattr(model, prefix) else ""
    return {**{prefix + pattern: word for pattern, word in base.items()}, **own}
