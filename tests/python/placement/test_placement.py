"""Ranks and groups, equal to the tables that Amazon's documentation prints."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from smdp.placement import STRATEGIES, Kind, Placement

KINDS: tuple[Kind, ...] = ("pp", "tp", "rdp", "dp", "mp")

# 8 ranks, tp = pp = rdp = 2: of every rank (rdp, pp, tp), (dp, mp).
TABLES = {
    "DPT": ["000 00", "001 11", "010 02", "011 13", "100 20", "101 31", "110 22", "111 33"],
    "PTD": ["000 00", "100 10", "001 21", "101 31", "010 02", "110 12", "011 23", "111 33"],
    "DTP": ["000 00", "010 01", "001 12", "011 13", "100 20", "110 21", "101 32", "111 33"],
}


@pytest.mark.parametrize("strategy", TABLES)
def test_published_tables(strategy: str) -> None:
    placement = Placement(pipeline=2, tensor=2, data=2, strategy=strategy)
    rows = []
    for rank in range(8):
        places = [placement.group_rank(kind, rank) for kind in ("rdp", "pp", "tp", "dp", "mp")]
        rows.append("{}{}{} {}{}".format(*places))
    assert rows == TABLES[strategy]


@pytest.mark.parametrize(
    ("strategy", "mp", "dp"),
    [
        ("spread", [(0, 4), (1, 5), (2, 6), (3, 7)], [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("cluster", [(0, 1), (2, 3), (4, 5), (6, 7)], [(0, 2, 4, 6), (1, 3, 5, 7)]),
    ],
)
def test_published_groups(strategy: str, mp: list[tuple[int, ...]], dp: list[tuple[int, ...]]) -> None:
    placement = Placement.of_world(8, pipeline=2, strategy=strategy)
    assert placement.groups("mp") == mp
    assert placement.groups("dp") == dp


def test_names_of_strategies() -> None:
    assert set(STRATEGIES) == {"cluster", "spread", *("".join(letters) for letters in permutations("DPT"))}
    sizes = {"pipeline": 2, "tensor": 3, "data": 4}
    for word, letters in (("cluster", "DPT"), ("spread", "TPD")):
        assert Placement(**sizes, strategy=word).groups("mp") == Placement(**sizes, strategy=letters).groups(
            "mp"
        )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_identities(strategy: str) -> None:
    for pipeline, tensor, data in product((1, 2, 3), repeat=3):
        placement = Placement(pipeline, tensor, data, strategy)
        size = {kind: len(placement.group(kind, 0)) for kind in KINDS}
        assert size["mp"] * size["rdp"] == size["pp"] * size["dp"] == placement.size
        assert size["pp"] * size["tp"] * size["rdp"] == placement.size
        for kind in KINDS:
            groups = placement.groups(kind)
            assert sorted(rank for group in groups for rank in group) == list(range(placement.size))
            assert all(len(group) == size[kind] for group in groups)
        for rank in range(placement.size):
            assert placement.rank(**placement.coordinates(rank)._asdict()) == rank
            pipelines = {placement.group("pp", member) for member in placement.group("tp", rank)}
            assert placement.group("mp", rank) == tuple(sorted(sum(pipelines, ())))
            assert set(placement.group("tp", rank)) <= set(placement.group("dp", rank))


@pytest.mark.parametrize("place", range(3))
def test_right_most_letter_varies_fastest(place: int) -> None:
    for strategy in ("".join(letters) for letters in permutations("DPT")):
        placement = Placement(pipeline=2, tensor=2, data=2, strategy=strategy)
        name = {"D": "rdp", "P": "pp", "T": "tp"}[strategy[place]]
        step = 2 ** (2 - place)
        assert [getattr(placement.coordinates(rank), name) for rank in (0, step)] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pipeline": 0}, "pipeline = 0 is not valid; allowed: an integer of at least 1"),
        ({"tensor": -2}, "tensor = -2"),
        ({"data": 1.5}, "data = 1.5"),
        ({"data": True}, "data = True"),
        ({"strategy": []}, "placement_strategy = [] is not valid; allowed: cluster"),
        ({"strategy": "DDP"}, "'DDP' is not valid; allowed: cluster, spread, DPT"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=r"^\[smdp\] ") as caught:
        Placement(**arguments)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_wrong_places() -> None:
    placement = Placement(2, 2, 2)
    with pytest.raises(ValueError, match="rank = 8 is not valid; allowed: 0 to 7"):
        placement.coordinates(8)
    for rank in (1.5, True, "1", None):
        with pytest.raises(ValueError, match=rf"rank = {rank!r} is not valid; allowed: an integer, 0 to 7"):
            placement.coordinates(rank)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"pp = 0\.0 is not valid; allowed: an integer, 0 to 1"):
        placement.rank(pp=0.0, tp=0, rdp=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tp = 2 is not valid; allowed: 0 to 1"):
        placement.rank(pp=0, tp=2, rdp=0)
    with pytest.raises(ValueError, match="group 'cp' is not valid; allowed: pp, tp, rdp, dp, mp"):
        placement.group("cp", 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"group \[\] is not valid"):
        placement.groups([])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a multiple of pipeline x tensor = 2 x 3 = 6"):
        Placement.of_world(8, pipeline=2, tensor=3)
