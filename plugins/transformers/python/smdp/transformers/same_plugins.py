"""Whether all ranks were given the same plugins: groups and steps that only some of them make would wait."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

import smdp
from smdp.transformers.plugin import Plugin


def check_same_plugins(plugins: Sequence[Plugin]) -> None:
    """Compare this rank's plugins with those of the others; all ranks call it.

    Raises:
        smdp.MismatchError: On all ranks: some have others than rank 0.
    """
    told: list[list[str]] = [[]] * dist.get_world_size()
    dist.all_gather_object(told, [plugin.described() for plugin in plugins])
    for rank, theirs in enumerate(told):
        if theirs != told[0]:
            raise smdp.MismatchError(
                f"[smdp] plugins differ between ranks: [{', '.join(theirs)}] on rank {rank} of {len(told)},"
                f" but [{', '.join(told[0])}] on rank 0. Give all ranks the same plugins with the same"
                " arguments."
            )
