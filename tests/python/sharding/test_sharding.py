"""Shards and plans through Python, on arrays: what a checkpoint would do."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from smdp import sharding
from smdp.placement import STRATEGIES, Placement

Array = np.ndarray


def shards_of(
    arrays: list[Array], parameters: list[sharding.ShardedParameter], layout: sharding.ShardingLayout
) -> list[Array]:
    """Give every rank's shard."""
    ranks = layout.pipeline * layout.tensor * layout.data
    shards = []
    for rank in range(ranks):
        shard = np.zeros(sharding.shard_bytes(parameters, layout, rank), np.uint8)
        for piece in sharding.holdings(parameters, layout, rank):
            source = arrays[piece.parameter].reshape(-1).view(np.uint8)[piece.begin : piece.end]
            shard[piece.offset : piece.offset + len(source)] = source
        shards.append(shard)
    return shards


def test_checkpoint_moves_between_layouts() -> None:
    rng = random.Random(1)
    shapes = [((12, 8), 0, 3), ((8, 12), 1, 1), ((8,), None, 1), ((50, 8), 0, 1), ((7,), 0, 1)]
    arrays = [np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1 for shape, _, _ in shapes]
    parameters = [
        sharding.parameter(shape, split=split, sections=sections) for shape, split, sections in shapes
    ]

    def some_layout() -> sharding.ShardingLayout:
        pipeline = rng.choice([1, 2, 4])
        placement = Placement(pipeline, rng.choice([1, 2, 3]), rng.choice([1, 2, 5]), rng.choice(STRATEGIES))
        return sharding.layout(placement, [rng.randrange(pipeline) for _ in shapes])

    for _ in range(100):
        source, target = some_layout(), some_layout()
        before, expected = shards_of(arrays, parameters, source), shards_of(arrays, parameters, target)
        after = [np.zeros_like(shard) for shard in expected]
        written = 0
        for move in sharding.reshard(parameters, source, target):
            for row in range(move.rows):
                source_begin = move.source_offset + row * move.source_stride
                target_begin = move.target_offset + row * move.target_stride
                data = before[move.source][source_begin : source_begin + move.bytes]
                assert len(data) == move.bytes
                after[move.target][target_begin : target_begin + move.bytes] += data
                written += move.bytes
        for got, wanted in zip(after, expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
        whole = target.tensor
        once = [
            array.nbytes * (whole if split is None else 1)
            for array, (_, split, _) in zip(arrays, shapes, strict=True)
        ]
        assert written == sum(once)


def test_rows_of_a_matrix_are_one_move() -> None:
    columns = [sharding.parameter((2**18, 64), split=1)]
    whole, halves = (sharding.layout(Placement(tensor=tensor), [0]) for tensor in (1, 2))
    for source, target in ((whole, halves), (halves, whole)):
        moves = sharding.reshard(columns, source, target)
        assert [(move.rows, move.bytes) for move in moves] == [(2**18, 32 * 4)] * 2


def test_tensor_slices_are_those_of_chunk() -> None:
    array = np.arange(5 * 6, dtype=np.float32).reshape(5, 6)
    columns = [sharding.parameter((5, 6), split=1)]
    rows = [sharding.parameter((5, 6), split=0)]
    layout = sharding.layout(Placement(tensor=4), [0])
    shards = shards_of([array], columns, layout)
    assert [shard.nbytes for shard in shards] == [5 * 2 * 4, 5 * 2 * 4, 5 * 2 * 4, 0]
    np.testing.assert_array_equal(shards[1].view(np.float32).reshape(5, 2), array[:, 2:4])
    np.testing.assert_array_equal(
        shards_of([array], rows, layout)[2].view(np.float32).reshape(1, 6), array[4:]
    )


def test_sections_are_divided_each_for_itself() -> None:
    heads = np.arange(12, dtype=np.float32)
    fused = [sharding.parameter((12,), split=0, sections=3)]
    shards = shards_of([heads], fused, sharding.layout(Placement(tensor=2), [0]))
    assert shards[0].view(np.float32).tolist() == [0, 1, 4, 5, 8, 9]


def test_optimizer_shards() -> None:
    parameters = [
        sharding.parameter((1000, 7)),
        sharding.parameter((13,)),
        sharding.parameter((64,), element_size=2),
    ]
    shards = sharding.ParameterShards(parameters, 3)
    sizes = [shards.bytes(rank) for rank in range(3)]
    assert sum(sizes) == 28000 + 52 + 128 and max(sizes) - min(sizes) <= 64
    assert [owner.rank for owner in shards.owners(0)] == [0, 1, 2]
    assert [owner.rank for owner in shards.owners(1)] == [2]
    assert shards.pieces(2)[-1].end == 128


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sharding.parameter((4, 4), split=2), "split = 2 is not valid"),
        (
            lambda: sharding.parameter((4, 4), split=0, sections=3),
            "sections = 3 is not valid; allowed: a divisor of 4",
        ),
        (lambda: sharding.ParameterShards([sharding.parameter((4,), element_size=3)], 2), "element_size = 3"),
        (lambda: sharding.ParameterShards([sharding.parameter((-4,))], 2), "shape[0] = -4"),
        (lambda: sharding.parameter((-2, -2)), "shape[0] = -2 is not valid; allowed: an integer from 0 to"),
        (lambda: sharding.parameter((2, 4.5)), "shape[1] = 4.5"),
        (lambda: sharding.parameter((True,)), "shape[0] = True"),
        (lambda: sharding.parameter((10**100,)), "shape[0] = 1000"),
        (lambda: sharding.parameter(4), "shape = 4 is not valid; allowed: a sequence of integers"),
        (
            lambda: sharding.parameter((2**40, 2**40)),
            "shape = (1099511627776, 1099511627776) is not valid; allowed: at most 281474976710656 elements",
        ),
        (lambda: sharding.parameter((2**40, 2**40, 0), split=2), "at most 281474976710656 elements"),
        (
            lambda: sharding.parameter((4,), element_size=4.0),
            "element_size = 4.0 is not valid; allowed: 1, 2",
        ),
        (
            lambda: sharding.parameter((4,), split=0.0),
            "split = 0.0 is not valid; allowed: None, or the index of one of 1",
        ),
        (lambda: sharding.parameter((4,), split=0, sections=2.0), "sections = 2.0"),
        (
            lambda: sharding.layout(Placement(pipeline=10**8), [0]),
            "pipeline x tensor x data = 100000000 x 1 x 1 is not valid; allowed: at most 1048576 ranks",
        ),
        (lambda: sharding.layout(None, [0]), "placement = None is not valid; allowed: a Placement"),
        (lambda: sharding.layout(Placement(2), [True]), "stage = True"),
        (lambda: sharding.layout(Placement(2), [0.5]), "stage = 0.5"),
        (lambda: sharding.layout(Placement(2), [[0, 2**70]]), "stage = 1180591620717411303424"),
        (
            lambda: sharding.layout(Placement(2), [None]),
            "stages = [None] is not valid; allowed: one stage, or",
        ),
        (
            lambda: sharding.layout(Placement(2), 0),
            "stages = 0 is not valid; allowed: one stage, or a list of stages",
        ),
        (
            lambda: sharding.ParameterShards([], 0),
            "ranks = 0 is not valid; allowed: an integer from 1 to 1048576",
        ),
        (
            lambda: sharding.ParameterShards([], 2).pieces(2),
            "rank = 2 is not valid; allowed: an integer from 0 to 1",
        ),
        (
            lambda: sharding.reshard(
                [sharding.parameter((4,))],
                sharding.layout(Placement(2), [2]),
                sharding.layout(Placement(), [0]),
            ),
            "stage = 2 is not valid; allowed: an integer from 0 to 1",
        ),
    ],
)
def test_wrong_arguments(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=r"^\[smdp\] ") as caught:
        make()  # type: ignore[operator]
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        (-1, "parameter = -1 is not valid; allowed: an integer from 0 to 0"),
        (2**64, "parameter = 18446744073709551616 is not valid; allowed: an integer of 64 bits"),
        pytest.param(10**5000, "allowed: an integer of 64 bits", id="huge"),
        ("x", "parameter = 'x' is not valid; allowed: an integer"),
        (None, "parameter = None is not valid; allowed: an integer"),
        (0.0, "parameter = 0.0 is not valid; allowed: an integer"),
    ],
)
def test_wrong_places_are_named(parameter: object, message: str) -> None:
    shards = sharding.ParameterShards([sharding.parameter((4, 4))], ranks=2)
    with pytest.raises((TypeError, ValueError), match=r"^\[smdp\] ") as caught:
        shards.owners(parameter)  # type: ignore[arg-type]
    assert message in str(caught.value)
    for method in (shards.pieces, shards.bytes):
        with pytest.raises((TypeError, ValueError), match=r"^\[smdp\] rank = "):
            method(parameter if parameter != 0.0 else 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda one: sharding.ParameterShards(None, ranks=2),
            "parameters = None is not valid; allowed: a list",
        ),
        (
            lambda one: sharding.ParameterShards([one, 1], 2),
            r"parameters\[1\] = 1 is not valid; allowed: a Sharded",
        ),
        (lambda one: sharding.ParameterShards([one], "2"), "ranks = '2' is not valid; allowed: an integer"),
        (
            lambda one: sharding.holdings([one], None, 0),
            "layout = None is not valid; allowed: a ShardingLayout",
        ),
        (
            lambda one: sharding.shard_bytes([one], sharding.layout(Placement(), [0]), 0.5),
            "rank = 0.5 is not valid; allowed: an integer",
        ),
        (
            lambda one: sharding.reshard([one], sharding.layout(Placement(), [0]), 3),
            "target = 3 is not valid; allowed: a ShardingLayout",
        ),
        (lambda one: sharding.reshard(one, None, None), "parameters = .* is not valid; allowed: a list"),
    ],
)
def test_values_of_another_type_are_named(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^\[smdp\] {message}"):
        call(sharding.parameter((4, 4)))


def test_a_number_that_cannot_be_shown_is_told() -> None:
    with pytest.raises(ValueError, match=r"shape\[0\] = an int of 16610 bits is not valid"):
        sharding.parameter((10**5000,))
