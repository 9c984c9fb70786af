"""Makes the plan of a model: by smdp's rules for classes, from the model's own plan, or from the user's."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

from torch import nn

from smdp.torch.tensor_parallelism.actions.action import Action
from smdp.torch.tensor_parallelism.actions.embeddings import Vocabulary
from smdp.torch.tensor_parallelism.actions.linears import Head
from smdp.torch.tensor_parallelism.actions.whole_modules import Region
from smdp.torch.tensor_parallelism.derivation.derive import derive
from smdp.torch.tensor_parallelism.families.divisions import per_rank
from smdp.torch.tensor_parallelism.families.rules import RULES
from smdp.torch.tensor_parallelism.layers.linear import is_linear
from smdp.torch.tensor_parallelism.plan import TensorParallelPlan
from smdp.torch.tensor_parallelism.preconditions import check_degree, check_plan
from smdp.torch.tensor_parallelism.words import WORDS, action_of

# Of layers, in the error that there is no plan.
_MOST_REASONS = 6


def plan_of(model: nn.Module, degree: int, plan: str | Mapping[str, str]) -> TensorParallelPlan:
    """Returns the plan of a model.

    Args:
        model: The model, whose modules are whole.
        degree: The number of ranks.
        plan: "auto", or words by patterns of module names, in which * is a number or any part of a name.

    Raises:
        ValueError: The plan is not valid, or there is none for this model.
    """
    check_degree(degree)
    check_plan(plan)
    if degree == 1 and plan == "auto":
        return TensorParallelPlan(type(model).__name__, 1, "a degree of 1")
    actions: dict[str, Action] = {}
    reasons: dict[str, str] = {}
    default = "no rule divides it"
    if not isinstance(plan, str):
        source = "the plan that was passed"
        actions.update(_by_words(model, degree, plan))
    else:
        source = "smdp's rules"
        actions.update(_by_rules(model, degree))
        own = _plan_of_model(model)
        if not actions and own:
            source = f"the plan of {type(model).__name__}"
            actions.update(_by_words(model, degree, own))
        if not actions:
            source = "trials of its layers"
            derived = derive(model, degree, _head(model))
            actions.update(derived.actions)
            reasons, default = derived.reasons, "only linear layers are divided"
        if not actions:
            lines = [f"\n  {name}: {reason}" for name, reason in islice(reasons.items(), _MOST_REASONS)]
            raise ValueError(
                f"[smdp] tensor_parallel: there is no plan for {type(model).__name__} and {degree} ranks."
                ' Pass one, for example plan={"layers.*.up": "colwise", "layers.*.down": "rowwise"}.'
                f"{''.join([' None was derived:', *lines] if lines else [])}"
            )
        actions.update(_ends(model, actions))
    whole = {
        name: reasons.get(name, default)
        for name, module in model.named_modules()
        if name not in actions and next(module.parameters(recurse=False), None) is not None
    }
    return TensorParallelPlan(type(model).__name__, degree, source, actions, whole)


def _by_rules(model: nn.Module, degree: int) -> dict[str, Action]:
    found: dict[str, Action] = {}
    for name, module in model.named_modules():
        rule = RULES.get(type(module).__name__)
        if rule is None:
            continue
        division = rule(module, degree)
        prefix = f"{name}." if name else ""
        for child, action in division.children.items():
            if getattr(module, child, None) is not None:
                found[prefix + child] = action
        if division.is_region:
            found[name] = Region(dict(division.attributes), dict(division.config))
    return found


def _plan_of_model(model: Any) -> dict[str, str]:
    """Returns the plan of a transformers model: of its base model, and of its own layers."""
    own = dict(getattr(model, "_tp_plan", None) or {})
    base = getattr(getattr(model, "config", None), "base_model_tp_plan", None) or {}
    prefix = getattr(model, "base_model_prefix", "")
    prefix = f"{prefix}." if prefix and hasattr(model, prefix) else ""
    return {**{prefix + pattern: word for pattern, word in base.items()}, **own}


def _by_words(model: nn.Module, degree: int, plan: Mapping[str, str]) -> dict[str, Action]:
    names = [name for name, _ in model.named_modules()]
    found: dict[str, Action] = {}
    patterns: dict[str, str] = {}
    for pattern, word in plan.items():
        if word not in WORDS:
            near = difflib.get_close_matches(str(word), WORDS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"[smdp] tensor_parallel: plan[{pattern!r}] = {word!r} is not a style.{hint} Styles:"
                f" {', '.join(WORDS)}."
            )
        expression = re.compile(r"[^.]+".join(map(re.escape, pattern.split("*"))))
        matches = [name for name in names if name and expression.fullmatch(name)]
        if not matches:
            general = sorted({re.sub(r"\d+", "*", name) for name in names if name})
            near = difflib.get_close_matches(pattern, general, 1, 0)
            raise ValueError(
                f"[smdp] tensor_parallel: plan[{pattern!r}] matches no module of {type(model).__name__}."
                f" The nearest name is {near[0]!r}."
            )
        for name in matches:
            if name in patterns:
                raise ValueError(
                    f"[smdp] tensor_parallel: {name!r} matches two patterns, {patterns[name]!r} and"
                    f" {pattern!r}. Remove one of them."
                )
            patterns[name] = pattern
            action = _action(model, name, word)
            if action is not None:
                found[name] = action
    parents = dict.fromkeys(name.rpartition(".")[0] for name, action in found.items() if _is_inside(action))
    return {**found, **{name: _region(model.get_submodule(name), degree) for name in parents}}


def _action(model: nn.Module, name: str, word: str) -> Action | None:
    module = model.get_submodule(name)
    parent = model.get_submodule(name.rpartition(".")[0])
    return action_of(word, module, parent, is_head=module is _head(model))


def _is_inside(action: Action) -> bool:
    return not isinstance(action, (Head, Vocabulary))


def _region(parent: nn.Module, degree: int) -> Region:
    """Returns what changes in a module around divided layers of a plan of words."""
    config: Any = getattr(parent, "config", None)
    groups = getattr(parent, "num_key_value_groups", None)
    heads = getattr(config, "num_attention_heads", None)
    if groups is None or heads is None:
        return Region()
    keys = heads // groups
    return Region({"num_key_value_groups": per_rank(heads, degree) // per_rank(keys, degree)})


def _head(model: Any) -> nn.Module | None:
    get = getattr(model, "get_output_embeddings", None)
    found = get() if get is not None else None
    return found if isinstance(found, nn.Module) and is_linear(found) else None


def _ends(model: Any, actions: Mapping[str, Action]) -> dict[str, Action]:
    """Returns what happens to the embedding and the head of a language model."""
    names = {id(module): name for name, module in model.named_modules()}
    found: dict[str, Action] = {}
    head = _head(model)
    if head is not None:
        found[names[id(head)]] = Head()
    get = getattr(model, "get_input_embeddings", None)
    embedding = get() if get is not None else None
    is_tied = head is not None and embedding is not None and embedding.weight is head.weight
    if isinstance(embedding, nn.Embedding) and (is_tied or head is not None):
        found[names[id(embedding)]] = Vocabulary()
    return found
