"""Sharding of parameters and optimizer state over ranks, and the moves that change one layout to another.

parameters = [sharding.parameter((4096, 1024), split=0), sharding.parameter((1024,))]
mine = sharding.ParameterShards(parameters, ranks=8).pieces(rank)

before = sharding.layout(Placement(pipeline=2, tensor=2, data=2), stages=[0, 1])
after = sharding.layout(Placement(tensor=4), stages=[0, 0])
for move in sharding.reshard(parameters, before, after):
    for row in range(move.rows):
        begin = move.source_offset + row * move.source_stride
        data = before_shards[move.source][begin : begin + move.bytes]
        begin = move.target_offset + row * move.target_stride
        after_shards[move.target][begin : begin + move.bytes] = data
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
from smdp._shown import shown
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

# The core's limits, checked here before anything of that size is allocated.
_MOST_RANKS = 2**20
_MOST_ELEMENTS = 2**48


def parameter(
    shape: Sequence[int], *, element_size: int = 4, split: int | None = None, sections: int = 1
) -> ShardedParameter:
    """Returns a description of a tensor.

    Args:
        shape: Its dimensions, in row-major order.
        element_size: Bytes per element: 1, 2, 4, 8, 16, 32 or 64.
        split: The dimension that tensor parallelism divides, into blocks like those of torch's `chunk`. None:
            every tensor-parallel rank holds the whole tensor.
        sections: Number of equal parts of that dimension that are divided separately, e.g. 3 for query, key
            and value in one matrix.

    Raises:
        ValueError: A size is invalid, or the dimension does not exist.
    """
    shape = _shape(shape)
    if not _is_integer(element_size, 1, 64):
        raise _wrong("element_size", element_size, "1, 2, 4, 8, 16, 32, 64")
    if split is None:
        return ShardedParameter(length=prod(shape), element_size=element_size)
    if not _is_integer(split, 0, len(shape) - 1):
        raise _wrong("split", split, f"None, or the index of one of {len(shape)} dimensions")
    if not _is_integer(sections, 1, _MOST_ELEMENTS) or shape[split] % sections != 0:
        raise _wrong("sections", sections, f"a divisor of {shape[split]}")
    return ShardedParameter(
        outer=prod(shape[:split]) * sections,
        length=shape[split] // sections,
        inner=prod(shape[split + 1 :]),
        element_size=element_size,
        is_split=True,
    )


def layout(placement: Placement, stages: Sequence[int | Sequence[int]]) -> ShardingLayout:
    """Returns which ranks hold which parameters.

    Each stage's slice of the parameters is sharded equally over the data-parallel ranks that hold it.

    Args:
        placement: The ranks.
        stages: For each parameter, the stage that holds it; for a tied parameter, all stages that hold it, in
            ascending order.

    Raises:
        ValueError: There are too many ranks, or a stage does not exist.
    """
    if not isinstance(placement, Placement):
        raise _wrong("placement", placement, "a Placement")
    if placement.size > _MOST_RANKS:
        raise ValueError(
            f"[smdp] pipeline x tensor x data = {placement.pipeline} x {placement.tensor} x {placement.data}"
            f" is not valid; allowed: at most {_MOST_RANKS} ranks"
        )
    holders = _holders(stages, placement.pipeline)
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
        stages=holders,
        ranks=ranks,
    )


def _wrong(name: str, value: object, allowed: str) -> ValueError:
    return ValueError(f"[smdp] {name} = {shown(value, 120)} is not valid; allowed: {allowed}")


def _is_integer(value: object, smallest: int, largest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and smallest <= value <= largest


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        sizes = tuple(shape)
    except TypeError:
        raise _wrong("shape", shape, "a sequence of integers") from None
    for index, size in enumerate(sizes):
        if not _is_integer(size, 0, _MOST_ELEMENTS):
            raise _wrong(f"shape[{index}]", size, f"an integer from 0 to {_MOST_ELEMENTS}")
    # Zeros are skipped, so that no product of some of the dimensions is too large for the core either.
    if prod(size for size in sizes if size > 0) > _MOST_ELEMENTS:
        raise _wrong("shape", sizes, f"at most {_MOST_ELEMENTS} elements")
    return sizes


def _holders(stages: Sequence[int | Sequence[int]], pipeline: int) -> list[list[int]]:
    try:
        holders = [[each] if isinstance(each, (int, float)) else list(each) for each in stages]
    except TypeError:
        raise _wrong("stages", stages, "one stage, or a list of stages, per parameter") from None
    for stage in (stage for each in holders for stage in each):
        if not _is_integer(stage, 0, pipeline - 1):
            raise _wrong("stage", stage, f"an integer from 0 to {pipeline - 1}")
    return holders
