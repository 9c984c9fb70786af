"""Makes a plan of the words that a model has of its own, or that the user passes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from smdp.torch.tensor_parallelism.actions.action import Action
from smdp.torch.tensor_parallelism.actions.embeddings import Vocabulary
from smdp.torch.tensor_parallelism.actions.experts import Experts
from smdp.torch.tensor_parallelism.actions.linears import Columns, Head, Rows
from smdp.torch.tensor_parallelism.actions.whole_modules import LatentOutputs, Region
from smdp.torch.tensor_parallelism.ends import head_of
from smdp.torch.tensor_parallelism.families.divisions import per_rank
from smdp.torch.tensor_parallelism.words import WORDS, action_of, experts_of


def plan_by_words(
    model: nn.Module, degree: int, plan: Mapping[str, str], *, is_own: bool = False
) -> dict[str, Action]:
    """Returns what words mean for the modules of a model.

    Args:
        model: The model, whose modules are whole.
        degree: The number of ranks.
        plan: Words by patterns of names of modules or of parameters, in which * is any part of a name.
        is_own: Whether the model brings the plan, which may name modules that only others of its kind have.

    Raises:
        ValueError: A word or a pattern is not valid.
    """
    words = _words_by_name(model, plan, is_own=is_own)
    parameters: dict[str, dict[str, str]] = {}
    found: dict[str, Action] = {}
    modules = dict(model.named_modules())
    head = head_of(model)
    for name, word in words.items():
        parent, _, last = name.rpartition(".")
        if name not in modules:
            parameters.setdefault(parent, {})[last] = word
            continue
        action = action_of(word, modules[name], modules[parent], is_head=modules[name] is head)
        if action is not None:
            found[name] = action
    parents = {name.rpartition(".")[0]: () for name, action in found.items() if _is_inside(action)}
    regions: dict[str, tuple[str, ...]] = dict(parents)
    for name, of_parameters in parameters.items():
        if words.get(name) == "moe_tp_experts":
            found[name] = experts_of(of_parameters)
        else:
            regions[name] = _bare(modules[name], name, of_parameters)
    found |= {name: _region(modules[name], degree, bare) for name, bare in regions.items()}
    return found


def _words_by_name(model: nn.Module, plan: Mapping[str, str], *, is_own: bool) -> dict[str, str]:
    names = [name for name, _ in model.named_modules() if name]
    names += [name for name, _ in model.named_parameters() if not name.endswith((".weight", ".bias"))]
    found: dict[str, str] = {}
    patterns: dict[str, str] = {}
    for pattern, word in plan.items():
        expression = re.compile(r"[^.]+".join(map(re.escape, pattern.split("*"))))
        matches = [name for name in names if expression.fullmatch(name)]
        if is_own and not matches:
            continue
        if word not in WORDS:
            near = difflib.get_close_matches(str(word), WORDS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"[smdp] tensor_parallel: plan[{pattern!r}] = {word!r} is not a style.{hint} Styles:"
                f" {', '.join(WORDS)}."
            )
        if not matches:
            general = sorted({re.sub(r"\d+", "*", name) for name in names})
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
            patterns[name], found[name] = pattern, word
    return found


def _bare(module: nn.Module, name: str, words: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the parameters of a module that are divided without a layer of their own."""
    for parameter, word in words.items():
        if word != "colwise" or module.get_parameter(parameter).ndim != 1:
            raise ValueError(
                f"[smdp] tensor_parallel: style {word!r} cannot be used for parameter {name}.{parameter}."
                ' Only "colwise" can, for parameters with one dimension.'
            )
    return tuple(words)


def _is_inside(action: Action) -> bool:
    """Returns whether code around a module works on slices."""
    is_whole = (isinstance(action, Columns) and action.gathers) or (
        isinstance(action, Rows) and action.splits
    )
    return not is_whole and not isinstance(action, (Head, Vocabulary, LatentOutputs, Experts))


def _region(parent: nn.Module, degree: int, bare: tuple[str, ...]) -> Region:
    """Returns what changes in a module around divided layers of a plan of words."""
    config: Any = getattr(parent, "config", None)
    groups = getattr(parent, "num_key_value_groups", None)
    heads = getattr(config, "num_attention_heads", None)
    if groups is None or heads is None:
        return Region(parameters=bare)
    keys = heads // groups
    own = per_rank(heads, degree) // per_rank(keys, degree)
    return Region({"num_key_value_groups": own}, parameters=bare)
