"""The argument `shard_parameters` of other plugins, and what cannot be used with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_REFUSED = {
    "shard_optimizer": "shards of parameters have shards of the optimizer's state already. Leave"
    " shard_optimizer out",
    "compression": "shards travel uncompressed. Use shard_optimizer, which allows compression, in place of"
    " shard_parameters",
    "bucket_cap_mb": "gradients are sent unit by unit, not in fusion buffers. Leave bucket_cap_mb out",
}
_ELEMENTS = "a number of elements of at least 0"
# The keys of a mapping, and their values.
_OPTIONS = {
    "degree": "an integer of at least 1, or None",
    "persistence_threshold": _ELEMENTS,
    "max_live_parameters": _ELEMENTS,
    "reshard_after_forward": "True or False",
}


def asked_shards(owner: str, shard_parameters: object, others: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the keyword arguments for the ShardedDataParallel that an argument asks for, or None.

    Args:
        owner: The class that received the arguments, for messages.
        shard_parameters: False, True, a degree, or a mapping of keyword arguments.
        others: The other arguments by name, without those that have their default values.

    Raises:
        ValueError: The argument is not valid, or cannot be used with another one.
    """
    if shard_parameters is False:
        return None
    if isinstance(shard_parameters, Mapping):
        found = dict(shard_parameters)
    elif isinstance(shard_parameters, int) and shard_parameters >= 1:  # True, too
        found = {} if shard_parameters is True else {"degree": shard_parameters}
    else:
        raise ValueError(
            f"[smdp] {owner}: shard_parameters is {shard_parameters!r}; allowed: True, False, the number of"
            f" ranks over which the parameters are distributed, or a mapping of {', '.join(_OPTIONS)}."
        )
    for name, value in found.items():
        if name not in _OPTIONS:
            raise ValueError(
                f"[smdp] {owner}: shard_parameters has the key {name!r}; allowed: {', '.join(_OPTIONS)}."
            )
        if not _is_valid(name, value):
            raise ValueError(
                f"[smdp] {owner}: {name} of shard_parameters is {value!r}; allowed: {_OPTIONS[name]}."
            )
    for name, value in others.items():
        reason = _REFUSED.get(name)
        if name == "precision" and value == "fp16":
            reason = "float16 needs a loss scale that all ranks agree on. Use precision='bf16'"
        if reason is not None:
            raise ValueError(
                f"[smdp] {owner}: shard_parameters={shard_parameters!r} and {name}={value!r} cannot be used"
                f" together, because {reason}."
            )
    return found


def _is_valid(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return name == "reshard_after_forward"
    if name == "degree":
        return value is None or (isinstance(value, int) and value >= 1)
    return name != "reshard_after_forward" and isinstance(value, (int, float)) and value >= 0
