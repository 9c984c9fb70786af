"""Who holds which bytes of parameters or optimizer state, and what to send where when that changes.

parameters = [sharding.parameter((4096, 1024), split=0), sharding.parameter((1024,))]
mine = sharding.ParameterShards(parameters, ranks=8).pieces(rank)

before = sharding.layout(Placement(pipeline=2, tensor=2, data=2), stages=[0, 1])
after = sharding.layout(Placement(tensor=4), stages=[0, 0])
for move in sharding.reshard(parameters, before, after): ...
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from smdp._core import Move as Move
from smdp._core import Owner as Owner
from smdp._core import ParameterShards as ParameterShards
from smdp._core import Piece as Piece
from smdp._core import ShardedParameter as ShardedParameter
from smdp._core import ShardingLayout as ShardingLayout
from smdp._core import holdings as holdings
from smdp._core import reshard as reshard
from smdp._core import shard_bytes as shard_bytes
from smdp.placement import Placement

__all__ = [
    "Move",
    "Owner",
    "ParameterShards",
    "Piece",
    "ShardedParameter",
    "ShardingLayout",
    "holdings",
    "layout",
    "parameter",
    "reshard",
    "shard_bytes",
]


def parameter(
    shape: Sequence[int], *, element_size: int = 4, split: int | None = None, sections: int = 1
) -> ShardedParameter:
    """Describe a tensor.

    Args:
        shape: Its dimensions, row-major.
        element_size: Bytes of an element: 1, 2, 4, ... 64.
        split: The dimension that tensor parallelism divides, in blocks as torch's `chunk`; None: every
            tensor-parallel rank holds all of it.
        sections: Equal parts of that dimension that are divided each for itself, e.g. 3 for query, key and
            value in one matrix.

    Raises:
        ValueError: A size is wrong, or there is no such dimension.
    """
    if split is None:
        return ShardedParameter(length=prod(shape), element_size=element_size)
    if not 0 <= split < len(shape):
        raise ValueError(
            f"[smdp] split = {split} is not valid; allowed: None, or one of {len(shape)} dimensions"
        )
    if sections < 1 or shape[split] % sections != 0:
        raise ValueError(f"[smdp] sections = {sections} is not valid; allowed: a divisor of {shape[split]}")
    return ShardedParameter(
        outer=prod(shape[:split]) * sections,
        length=shape[split] // sections,
        inner=prod(shape[split + 1 :]),
        element_size=element_size,
        is_split=True,
    )


def layout(placement: Placement, stages: Sequence[int | Sequence[int]]) -> ShardingLayout:
    """Describe who holds what: each stage's slice is sharded equally over the ranks that hold the same one.

    Args:
        placement: The ranks.
        stages: Of each parameter the stage that holds it, or, if it is tied, all stages that do, ascending.
    """
    ranks = [
        placement.rank(pp=pp, tp=tp, rdp=rdp)
        for pp in range(placement.pipeline)
        for tp in range(placement.tensor)
        for rdp in range(placement.data)
    ]
    return ShardingLayout(
        pipeline=placement.pipeline,
        tensor=placement.tensor,
        data=placement.data,
        stages=[[each] if isinstance(each, int) else list(each) for each in stages],
        ranks=ranks,
    )
