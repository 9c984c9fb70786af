"""Blocks of a layer lie on the right ranks, and each element counts once in norms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from smdp.torch.mesh.cuts import Cut
from smdp.torch.mesh.slices import Slices
from smdp.torch.tensor_parallelism.actions.blocks import Block, ranges_of
from smdp.torch.tensor_parallelism.actions.experts import Experts, PackedDim
from smdp.torch.tensor_parallelism.actions.linears import Columns, Rows
from smdp.torch.tensor_parallelism.words import experts_of

QUERIES, KEYS = Block(8, 4), Block(4, 2, may_repeat=True)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_each_element_counts_once(size: int) -> None:
    blocks = (QUERIES, KEYS, KEYS)
    whole = torch.arange(1.0, 17)
    total, held = 0.0, []
    for rank in range(size):
        ranges = tuple(ranges_of(blocks, rank, size))
        slices = Slices(0, ranges, (16,))
        cut = Cut("tp", None, slices, tuple(block.is_first(rank, size) for block in blocks))  # type: ignore[arg-type]
        part = slices.take(whole)
        held.append(len(part))
        total += cut.counted(part).square().sum().item()
    assert total == whole.square().sum().item()
    assert held == [{1: 16, 2: 8, 4: 6}[size]] * size


@pytest.mark.parametrize("action", [Columns((QUERIES,)), Rows((QUERIES,))])
def test_fewer_heads_than_ranks_are_refused(action: Any) -> None:
    problem = action.problem(nn.Linear(8, 8), 8)
    assert problem is not None and problem.endswith("4 heads cannot be divided evenly")
    assert action.problem(nn.Linear(8, 8), 4) is None


def test_experts_name_what_does_not_fit() -> None:
    module = nn.Module()
    module.gate_up_proj = nn.Parameter(torch.zeros(2, 12, 4))
    module.down_proj = nn.Parameter(torch.zeros(2, 4, 6))
    experts = experts_of({"gate_up_proj": "packed_colwise", "down_proj": "rowwise"})
    assert experts.problem(module, 2) is None
    assert experts.problem(module, 4) == "a width of 6 is not a multiple of 4"
    assert "down_proj" in (Experts({"gate_up_proj": PackedDim(-2, 2)}).problem(module, 2) or "")
    with pytest.raises(ValueError, match=r"style 'replicated' cannot be used for parameter 'down_proj'"):
        experts_of({"down_proj": "replicated"})
