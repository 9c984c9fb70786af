"""Which modules are units, and which parameters are left beside them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from smdp.torch.pipelining.units.units import find_units, glue_parameters


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(4, 12), nn.Linear(4, 4)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(4), Attention()
        self.feed = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.router = Attention(), nn.Linear(4, 2)
        self.experts = nn.ModuleList(Expert() for _ in range(2))


class Body(nn.Module):
    def __init__(self, block: type[nn.Module], count: int) -> None:
        super().__init__()
        self.embedding, self.rotary = nn.Embedding(9, 4), nn.Identity()
        self.layers = nn.ModuleList(block() for _ in range(count))
        self.norm = nn.LayerNorm(4)


class Model(nn.Module):
    def __init__(self, block: type[nn.Module] = Block, count: int = 3) -> None:
        super().__init__()
        self.body = Body(block, count)
        self.scale = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.body.embedding.weight


@pytest.mark.parametrize("block", [Block, Mixture])
def test_blocks_stay_whole(block: type[nn.Module]) -> None:
    model = Model(block)
    units = find_units(model)
    blocks = [f"body.layers.{index}" for index in range(3)]
    assert units == ("body.embedding", *blocks, "body.norm", "head")
    assert glue_parameters(model, units) == ("scale",)
    assert glue_parameters(model, units[1:-1]) == ("scale", "body.embedding.weight")


def test_stages_of_blocks_are_taken_apart() -> None:
    stages = nn.ModuleList(nn.ModuleDict({"blocks": nn.ModuleList([Block(), Block()])}) for _ in range(2))
    model = nn.ModuleDict({"stages": stages, "head": nn.Linear(4, 4)})
    blocks = [f"stages.{stage}.blocks.{block}" for stage in range(2) for block in range(2)]
    assert find_units(model) == (*blocks, "head")


def test_a_network_of_plain_layers() -> None:
    features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3))
    model = nn.Sequential(features, nn.Flatten(), nn.Linear(4, 2))
    assert find_units(model) == ("0.0", "0.1", "0.3", "2")
    assert find_units(nn.Sequential(Block(), nn.Dropout(), Block())) == ("0", "2")


def test_a_shared_module_is_listed_once_under_its_first_name() -> None:
    block = Block()
    assert find_units(nn.Sequential(block, nn.Linear(4, 4), block)) == ("0", "1")


def test_too_few_units_take_the_largest_apart() -> None:
    model = Model(count=1)
    assert find_units(model) == ("body", "head")
    assert find_units(model, 3) == ("body.embedding", "body.layers.0", "body.norm", "head")
    assert find_units(model, 5) == (
        "body.embedding",
        "body.layers.0.norm",
        "body.layers.0.attention",
        "body.layers.0.feed",
        "body.norm",
        "head",
    )
    assert len(find_units(model, 8)) == 8
    with pytest.raises(ValueError, match=r"\[smdp\] Model has 8 modules .*the 9 stages .*; use stages=8 or"):
        find_units(model, 9)


def test_torchs_own_modules_stay_whole() -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8), nn.MultiheadAttention(4, 2))
    assert find_units(model, 2) == ("0", "1")
    with pytest.raises(ValueError, match="fewer than the 3 stages"):
        find_units(model, 3)


def test_a_model_without_children_is_one_unit() -> None:
    assert find_units(nn.Linear(2, 2)) == ("",)
    assert glue_parameters(nn.Linear(2, 2), ("",)) == ()
    with pytest.raises(ValueError, match=r"Linear has 1 module .*\(Linear\), fewer than the 2"):
        find_units(nn.Linear(2, 2), 2)


@pytest.mark.parametrize("least", [0, -1, 1.0, "2", None])
def test_stages_must_be_a_count(least: object) -> None:
    with pytest.raises(ValueError, match="integer of at least 1"):
        find_units(nn.Linear(2, 2), least)  # type: ignore[arg-type]


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="Sequential has no parameters"):
        find_units(nn.Sequential(nn.ReLU()))
