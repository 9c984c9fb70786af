"""`smdp.torch.checkpoint_activations()`, which recomputes the activations of a model's blocks in backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from torch import nn

from smdp.torch.pipelining.units.units import find_rows
from smdp.torch.recompute.activation_checkpoints import has_checkpoints
from smdp.torch.recompute.policies import Policy, read_policy
from smdp.torch.recompute.recomputed_forward import RecomputedForward, recompute
from smdp.torch.recompute.rules import FixedRule, Rule

Model = TypeVar("Model", bound=nn.Module)

def checkpoint_activations(model: Model, policy: Any = "each") -> Model:
    policy = read_policy(policy)
    rows = rows_of(model)
    for row in rows:
        rule = FixedRule(policy.size, is_selective=policy.is_selective)
        for name in row:
            recompute(name, model.get_submodule(name), rule)
    return model


def rows_of(model):
    return find_rows(model)
