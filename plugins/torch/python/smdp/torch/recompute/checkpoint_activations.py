"""`smdp.torch.checkpoint_activations()`, which recomputes the activations of a model's blocks in backward."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any, TypeVar

from torch import nn

from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.pipelining.units.units import find_rows
from smdp.torch.recompute.activation_checkpoints import has_checkpoints
from smdp.torch.recompute.budget_rule import BudgetRule
from smdp.torch.recompute.policies import Policy, read_policy
from smdp.torch.recompute.recomputed_forward import recompute
from smdp.torch.recompute.rules import FixedRule, Rule
from smdp.torch.tensor_parallelism.divided_model import axis_of_model
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis

Model = TypeVar("Model", bound=nn.Module)


def checkpoint_activations(model: Model, policy: Any = "each") -> Model:
    """Makes the blocks of a model keep less for backward, which computes the rest again.

    Blocks are the modules in an `nn.ModuleList` or `nn.Sequential`, such as the layers of a transformer.
    Results keep their bits, dropout draws the same numbers, and the keys of the state dict stay. Only the
    blocks' forwards run again, not their hooks.

    Call it before DistributedDataParallel, and before pipeline(), whose `recompute` does the same.

    Args:
        model: The model, which is changed in place.
        policy: What is kept:

            - "each": the inputs of each block.
            - "contiguous": the inputs of the first block of a list, in a pipeline of each stage's first one.
            - "group_N": the inputs of every Nth block.
            - "selective": results that are expensive per byte, such as products with weights and fused
              attention. Each block's inputs are also kept. Backward runs once: with `retain_graph` or
              `create_graph`, torch raises an error in the second one.
            - a budget of bytes, as an integer or like "2GB", or a part of what the blocks keep without
              recomputation, as a float above 0 and up to 1: what takes the fewest seconds to stay within it,
              including the blocks that are running again. The first forward measures the blocks.

            Blocks form a group if each gets what the one before returns, without other code in between.

    Returns:
        The model. A repeated call replaces the policy.

    Raises:
        ValueError: The policy is not valid, the model has no blocks, or it checkpoints activations itself. A
            budget that cannot be met raises at the end of the blocks' first forward, with the fewest bytes
            that are possible; with DistributedDataParallel and in pipelines, on all ranks.

    Example:
        >>> smdp.torch.checkpoint_activations(model, "group_2")  # doctest: +SKIP
    """
    read = read_policy(policy)
    names = rows_to_recompute(model)
    set_policy(model, names, read)
    return model


def rows_to_recompute(model: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Returns the names of the blocks in each list of a model.

    Raises:
        ValueError: There are none, or the model checkpoints activations itself.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"[smdp] checkpoint_activations() got {type(model).__name__}; expected a module")
    if has_checkpoints(model):
        raise ValueError(
            f"[smdp] {type(model).__name__} checkpoints activations itself, so they would be recomputed"
            " twice; call model.gradient_checkpointing_disable(), or leave out the policy"
        )
    rows = find_rows(model)
    if not rows:
        raise ValueError(
            f"[smdp] {type(model).__name__} has no blocks whose activations can be recomputed; put its layers"
            " into an nn.ModuleList or nn.Sequential, or use torch.utils.checkpoint in its forward"
        )
    return rows


def set_policy(
    model: nn.Module,
    rows: tuple[tuple[str, ...], ...],
    policy: Policy,
    *,
    argument: str = "policy",
    in_flight: float = 1,
) -> None:
    """Makes blocks follow a policy.

    Args:
        model: The model.
        rows: The names of the blocks in each list.
        policy: The policy.
        argument: The argument with which the user set it, for errors.
        in_flight: Most forwards of this process whose backward has not run.
    """
    modules = {name: model.get_submodule(name) for row in rows for name in row}
    budget: Rule | None = None
    if policy.is_budget:
        axis = axis_of_model(model)
        agree = None if axis is None else functools.partial(_choice_of_first, axis)
        budget = BudgetRule(policy, modules, argument=argument, in_flight=in_flight, agree=agree)
    for row in rows:
        rule = budget or FixedRule(policy.size, is_selective=policy.is_selective)
        for name in row:
            recompute(name, modules[name], rule)


def rows_in_units(rows: tuple[tuple[str, ...], ...], units: Collection[str]) -> tuple[tuple[str, ...], ...]:
    """Returns rows in which blocks that are cut into several units are replaced by these.

    Args:
        rows: The names of the blocks in each list.
        units: The names of the units of a pipelined model. Blocks that are in none of them are left out.
    """
    found = []
    for row in rows:
        parts: list[str] = []
        for name in row:
            is_inside = any(not unit or name == unit or name.startswith(unit + ".") for unit in units)
            parts += [name] if is_inside else [unit for unit in units if unit.startswith(name + ".")]
        found.append(tuple(parts))
    return tuple(filter(None, found))


def _choice_of_first(axis: TensorAxis, choice: Any) -> Any:
    """Returns the choice of the first rank that holds slices of the same layers, which communicate."""
    return on_every_rank(lambda: choice, axis.group)[0]
