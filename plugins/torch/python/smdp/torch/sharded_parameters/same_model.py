"""Compares models between ranks before they are sharded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from smdp._errors import MismatchError
from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.process_group.process_group import ProcessGroupSmdp


def check_same_model(
    model: nn.Module, units: Sequence[nn.Module], options: Mapping[str, Any], group: ProcessGroupSmdp
) -> None:
    """Checks that all ranks shard the same model in the same way. Collective.

    Raises:
        smdp.MismatchError: A rank differs from rank 0. The message names the first difference.
    """
    names = {id(module): name for name, module in model.named_modules()}
    tensors = [*model.named_parameters(), *model.named_buffers()]
    lines = [
        *(f"{name} = {value}" for name, value in options.items()),
        *(f"unit {names[id(unit)]!r}" for unit in units),
        *(f"{name!r} {str(one.dtype).removeprefix('torch.')}{list(one.shape)}" for name, one in tensors),
    ]
    every = on_every_rank(lambda: lines, group)
    for rank, theirs in enumerate(every):
        if theirs != every[0]:
            pairs = zip([*every[0], "nothing more"], [*theirs, "nothing more"], strict=False)
            first, other = next((one, other) for one, other in pairs if one != other)
            raise MismatchError(
                f"[smdp] ShardedDataParallel: rank 0 has {first} where rank {rank} has {other}. All ranks"
                " must build the same model and pass the same arguments."
            )
