"""Divisions are derived for modules without a rule or a plan, and only if they compute the same."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from derived_modules import (
    WIDTH,
    Direct,
    Fused,
    Gated,
    Grouped,
    Interleaved,
    Nested,
    Normed,
    Scaled,
    Skipped,
    Tempered,
    chain,
    encoder,
)
from divided_models import farthest
from torch import nn
from torch_spawn import run

import smdp.torch


def lines(module: nn.Module, degree: int = 2) -> dict[str, str]:
    """What the plan says for each module inside of a model."""
    text = str(smdp.torch.tensor_parallel_plan(nn.Sequential(module), degree))
    return dict(line.split(maxsplit=1) for line in text.splitlines()[1:])


def why_not(module: nn.Module, degree: int = 2) -> str:
    with pytest.raises(ValueError, match=r"^\[smdp\] tensor_parallel: there is no plan") as caught:
        smdp.torch.tensor_parallel_plan(nn.Sequential(module), degree)
    return str(caught.value)


def test_plans() -> None:
    assert lines(Gated()) == {
        "0": "dropout on slices",
        "0.up": "colwise: outputs / 2",
        "0.gate": "colwise: outputs / 2",
        "0.down": "rowwise: inputs / 2, result summed",
    }
    # Random numbers of a trial are the same on all ranks.
    assert lines(Skipped()) == lines(Gated())
    fused = lines(Fused())
    assert fused["0"] == "n_head = 2, embed_dim = 8"
    assert fused["0.qkv"] == "colwise: 4 heads / 2 | 4 heads / 2 | 4 heads / 2"
    assert lines(Interleaved())["0.qkv"] == "colwise: 4 heads / 2"
    grouped = lines(Grouped(), 4)
    assert grouped["0.k"] == "colwise: 2 heads on 2 ranks each"
    assert grouped["0.k_norm"] == grouped["0.q_norm"] == "replicated, gradients summed"
    assert lines(Nested())["0.inner"] == "num_heads = 2, all_width = 8"
    assert [name for name in lines(chain()) if name[-1] in "0246"] == ["0", "0.0", "0.2", "0.4", "0.6"]
    # The module around it can sum the gradient of a parameter that Tempered itself holds.
    assert lines(Tempered())["0"] == "replicated, gradients summed"
    transformer = lines(encoder())
    assert transformer["0.layers.1.linear1"].startswith("colwise")
    assert transformer["0.layers.1.self_attn"].startswith("whole: ")
    assert "reads its weight" in transformer["0.layers.1.self_attn.out_proj"]
    assert transformer["0"] == "use_nested_tensor = False"


def test_what_stays_whole_says_why() -> None:
    assert "its results differ by" in why_not(Normed())
    expected = "0.up: no division gives the results of the whole Scaled; of up, gate and down:"
    assert expected in why_not(Scaled())
    assert "no division gives the results of the whole Direct" in why_not(Direct())
    assert "up cannot be divided over 2 ranks: its 23 outputs" in why_not(Gated(23))
    assert "Conv2d" not in why_not(nn.Conv2d(1, 1, 1))
    assert "0.0: no other linear layer fits it" in why_not(nn.Sequential(nn.Linear(2, 4)))
    mixed = lines(nn.Sequential(Gated(), Normed(), nn.LayerNorm(WIDTH)))
    assert mixed["0.0.down"].startswith("rowwise")
    assert mixed["0.1.down"].startswith("whole: no division gives")
    assert mixed["0.2"] == "whole: only linear layers are divided"


def test_deriving_changes_nothing() -> None:
    model = nn.Sequential(Gated(), Grouped())
    before, generator = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    first = str(smdp.torch.tensor_parallel_plan(model, 2))
    assert first == str(smdp.torch.tensor_parallel_plan(model, 2))
    assert torch.equal(generator, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training and type(model[0]) is Gated and model[0].up.weight.grad is None
    with torch.device("meta"):
        abstract = nn.Sequential(Gated(), Grouped())
    assert str(smdp.torch.tensor_parallel_plan(abstract, 2)) == first


def train_alike(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    alone = nn.Sequential(make()).double()
    model = smdp.torch.tensor_parallel(copy.deepcopy(alone), dist.get_world_size())
    assert re.search("tensor_parallel=", repr(model))
    for each in (alone, model):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        torch.manual_seed(1)
        for _ in range(3):
            optimizer.zero_grad()
            each(torch.randn(2, 5, WIDTH, dtype=torch.float64)).square().mean().backward()
            optimizer.step()
    assert farthest(model, alone) < 1e-12, make
    hidden = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(hidden), alone.eval()(hidden))


def encode_padding() -> None:
    """torch's encoder packs padded sequences in evaluation, and its layers skip their linear layers' code."""
    torch.manual_seed(0)
    alone = encoder().eval()
    model = smdp.torch.tensor_parallel(copy.deepcopy(alone), dist.get_world_size())
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    hidden = torch.randn(2, 5, WIDTH)
    with torch.no_grad():
        expected, found = (each(hidden, src_key_padding_mask=padding) for each in (alone, model))
    torch.testing.assert_close(found[~padding], expected[~padding])


def divide_over_two() -> None:
    for make in (Fused, Interleaved, Grouped, encoder):
        train_alike(make)
    encode_padding()


def divide_over_four() -> None:
    for make in (Gated, Tempered, Grouped, Nested, chain):
        train_alike(make)


def test_two_ranks_train_like_one_process() -> None:
    run(divide_over_two)


def test_four_ranks_train_like_one_process() -> None:
    run(divide_over_four, 4)
