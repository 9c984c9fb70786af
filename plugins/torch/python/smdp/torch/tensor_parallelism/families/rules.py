"""All rules, by the name of a module's class."""

from __future__ import annotations

from torch import nn

from smdp.torch.tensor_parallelism.families import (
    conv1d,
    interleaved_heads,
    linear_pairs,
    multi_query,
    packed_blocks,
    separate_linears,
)
from smdp.torch.tensor_parallelism.families.divisions import Rule

_RULES: dict[str, Rule] = {
    **conv1d.RULES,
    **interleaved_heads.RULES,
    **linear_pairs.RULES,
    **multi_query.RULES,
    **packed_blocks.RULES,
    **separate_linears.RULES,
}


def rule_of(module: nn.Module) -> Rule | None:
    """Returns the rule for a module, or None. Only classes of transformers itself have rules.

    A class of the same name from elsewhere may compute something else.
    """
    kind = type(module)
    return _RULES.get(kind.__name__) if kind.__module__.startswith("transformers.") else None
