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


def asked_shards(owner: str, shard_parameters: object, others: Mapping[str, Any]) -> bool:
    """Checks the argument `shard_parameters`, and returns whether parameters are sharded.

    Args:
        owner: The class that received the arguments, for messages.
        shard_parameters: False, True for the default degree of ShardedDataParallel, or a degree.
        others: The other arguments by name, without those that have their default values.

    Raises:
        ValueError: The argument is not valid, or cannot be used with another one.
    """
    is_degree = isinstance(shard_parameters, int) and shard_parameters >= 1
    if not isinstance(shard_parameters, bool) and not is_degree:
        raise ValueError(
            f"[smdp] {owner}: shard_parameters is {shard_parameters!r}; allowed: True, False, or the number"
            " of ranks over which the parameters are distributed."
        )
    if shard_parameters is False:
        return False
    for name, value in others.items():
        reason = _REFUSED.get(name)
        if name == "precision" and value == "fp16":
            reason = "float16 needs a loss scale that all ranks agree on. Use precision='bf16'"
        if reason is not None:
            raise ValueError(
                f"[smdp] {owner}: shard_parameters={shard_parameters!r} and {name}={value!r} cannot be used"
                f" together, because {reason}."
            )
    return True
