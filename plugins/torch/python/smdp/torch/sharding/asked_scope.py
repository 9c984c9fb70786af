"""The scopes of a ShardedOptimizer, and the argument `shard_optimizer` of other plugins."""

from __future__ import annotations

SCOPES = ("world", "host", "auto")


def asked_scope(owner: str, shard_optimizer: object) -> str | None:
    """Returns the scope of the ShardedOptimizer that an argument asks for, or None.

    Args:
        owner: The class that received the argument, for the message.
        shard_optimizer: False for no sharding, True for all ranks, or a scope.

    Raises:
        ValueError: The argument has another value.
    """
    if isinstance(shard_optimizer, bool):
        return "world" if shard_optimizer else None
    if isinstance(shard_optimizer, str) and shard_optimizer in SCOPES:
        return shard_optimizer
    allowed = ", ".join(map(repr, SCOPES))
    raise ValueError(
        f"[smdp] {owner}: shard_optimizer is {shard_optimizer!r}; allowed: True, False, {allowed}."
    )
