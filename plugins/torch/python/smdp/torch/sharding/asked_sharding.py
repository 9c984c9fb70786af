"""The scopes of a ShardedOptimizer, and the argument `shard_optimizer` of other plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smdp.torch.offload.target import target_of

SCOPES = ("world", "host", "auto")
_OPTIONS = ("scope", "share_parameters", "offload")


def asked_sharding(owner: str, shard_optimizer: object) -> dict[str, Any] | None:
    """Returns the keyword arguments for the ShardedOptimizer that an argument asks for, or None.

    Args:
        owner: The class that received the argument, for messages.
        shard_optimizer: False for no sharding, True for all ranks, a scope, or a mapping of `scope`,
            `share_parameters` and `offload`.

    Raises:
        ValueError: The argument has another value.
    """
    if shard_optimizer is False:
        return None
    if shard_optimizer is True:
        return {"scope": "world"}
    if isinstance(shard_optimizer, str) and shard_optimizer in SCOPES:
        return {"scope": shard_optimizer}
    scopes = ", ".join(map(repr, SCOPES))
    if not isinstance(shard_optimizer, Mapping):
        raise ValueError(
            f"[smdp] {owner}: shard_optimizer is {shard_optimizer!r}; allowed: True, False, {scopes}, or a"
            f" mapping of {', '.join(_OPTIONS)}."
        )
    found = {"scope": "world", **shard_optimizer}
    for name in found:
        if name not in _OPTIONS:
            raise ValueError(
                f"[smdp] {owner}: shard_optimizer has the key {name!r}; allowed: {', '.join(_OPTIONS)}."
            )
    if found["scope"] not in SCOPES:
        raise ValueError(
            f"[smdp] {owner}: the scope of shard_optimizer is {found['scope']!r}; allowed: {scopes}."
        )
    if not isinstance(found.get("share_parameters", False), bool):
        raise ValueError(
            f"[smdp] {owner}: share_parameters of shard_optimizer is {found['share_parameters']!r}; allowed:"
            " True or False."
        )
    if found.get("offload") is None:
        return found
    try:
        target = target_of(found["offload"])
    except ValueError as error:
        raise ValueError(f"[smdp] {owner}: shard_optimizer: {str(error).removeprefix('[smdp] ')}") from None
    if target.directory is None:
        raise ValueError(
            f"[smdp] {owner}: offload of shard_optimizer is {found['offload']!r}; the state is in the memory"
            ' of the host already. Use "disk:/DIRECTORY", with a directory on a local disk.'
        )
    return found
