"""The functions that plans name, and the keywords that plans pass to them.

Tests compare this table with the signatures of the functions, so a plan never prints an argument that does
not exist.
"""

from __future__ import annotations

from collections.abc import Mapping

CALLS: Mapping[str, frozenset[str]] = {
    "smdp.torch.DistributedDataParallel": frozenset(),
    "smdp.torch.MixedPrecision": frozenset({"dtype"}),
    "smdp.torch.ShardedDataParallel": frozenset(
        {"degree", "dtype", "reshard_after_forward", "backward_passes"}
    ),
    "smdp.torch.ShardedOptimizer": frozenset({"scope", "master_dtype", "offload"}),
    "smdp.torch.checkpoint_activations": frozenset({"policy"}),
    "smdp.torch.lower_precision": frozenset({"dtype"}),
    "smdp.torch.offload_activations": frozenset({"offload"}),
    "smdp.torch.pipeline": frozenset(
        {
            "stages",
            "microbatches",
            "schedule",
            "example_inputs",
            "tensor",
            "virtual_stages",
            "active_microbatches",
            "recompute",
            "offload",
        }
    ),
    "smdp.torch.tensor_parallel": frozenset({"degree", "sequence_parallel"}),
    "smdp.transformers.DataParallel": frozenset(
        {"shard_optimizer", "shard_parameters", "recompute", "offload", "precision"}
    ),
    "smdp.transformers.ModelParallel": frozenset(
        {
            "stages",
            "microbatches",
            "schedule",
            "tensor",
            "virtual_stages",
            "active_microbatches",
            "shard_optimizer",
            "recompute",
            "offload",
            "precision",
        }
    ),
}


class Code(str):
    """An expression, which is printed as it is; other values are printed as literals."""

    __slots__ = ()


def call(name: str, *positional: str, **keywords: object) -> str:
    """Returns the text of a call.

    Args:
        name: A name in CALLS.
        positional: Expressions.
        keywords: Keyword arguments; those that are None are left out.

    Raises:
        KeyError: The function or one of the keywords is not in CALLS.
    """
    known = CALLS[name]
    given = {keyword: value for keyword, value in keywords.items() if value is not None}
    if unknown := given.keys() - known:
        raise KeyError(f"{name} has no keyword {', '.join(sorted(unknown))}")
    parts = [
        *positional,
        *(f"{keyword}={_literal(value)}" for keyword, value in given.items()),
    ]
    return f"{name}({', '.join(parts)})"


def _literal(value: object) -> str:
    if isinstance(value, str) and not isinstance(value, Code):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(each)}" for key, each in value.items()) + "}"
    return str(value)
