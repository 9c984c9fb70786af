"""Checks that all ranks have the same plugins, because ranks with different plugins would hang."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

import smdp
from smdp.transformers.plugin import Plugin


def check_same_plugins(plugins: Sequence[Plugin]) -> None:
    """Compares the plugins of all ranks. Collective.

    Raises:
        smdp.MismatchError: The plugins of some rank differ from those of rank 0. All ranks raise it.
    """
    told: list[list[str]] = [[]] * dist.get_world_size()
    dist.all_gather_object(told, [plugin.described() for plugin in plugins])
    for rank, theirs in enumerate(told):
        if theirs != told[0]:
            raise smdp.MismatchError(
                f"[smdp] plugins differ between ranks: [{', '.join(theirs)}] on rank {rank} of {len(told)},"
                f" but [{', '.join(told[0])}] on rank 0. Pass the same plugins with the same arguments on all"
                " ranks."
            )
