"""What policies are accepted, and what a budget chooses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from recomputed_models import ROWS, WIDTH, Row, are_same, gradients
from torch import Tensor, nn

from smdp.torch import checkpoint_activations
from smdp.torch.recompute.budget import Cost, groups_within, least_budget
from smdp.torch.recompute.policies import read_policy


@pytest.mark.parametrize(
    "policy",
    ["all", "group_0", "group_-1", "group_2x", "", "0B", "2 GBs", 0, -1, True, 0.0, 1.1, None, ["each"]],
)
def test_other_policies_are_refused(policy: Any) -> None:
    with pytest.raises(ValueError, match=r"\[smdp\] policy = .* allowed: 'each', 'contiguous', 'group_N'"):
        checkpoint_activations(Row(), policy)


def test_sizes() -> None:
    found = [read_policy(text).bytes for text in ("2GB", "1.5 KiB", "7B", 100)]
    assert found == [2 * 1000**3, 1536, 7, 100]


def test_models_without_blocks_or_with_own_checkpoints_are_refused() -> None:
    for policy in ("contiguous", "each", 0.5):
        with pytest.raises(ValueError, match="Linear has no blocks whose activations can be recomputed"):
            checkpoint_activations(nn.Linear(2, 2), policy)
    model = Row()
    model.layers[0].gradient_checkpointing = True
    with pytest.raises(ValueError, match="Row checkpoints activations itself"):
        checkpoint_activations(model)


def peak_of(costs: list[Cost], groups: list[tuple[int, int]], in_flight: int) -> int:
    """Replays the forwards in flight and one backward."""
    begins = dict(groups)
    kept, peak, pieces, place = 0, 0, [], 0
    while place < len(costs):
        end = begins.get(place, place + 1)
        size = costs[place].inputs if place in begins else costs[place].kept
        pieces.append((size, sum(cost.kept for cost in costs[place:end]) if place in begins else 0))
        kept += size
        place = end
    now = peak = in_flight * kept
    for size, rebuilt in reversed(pieces):
        peak = max(peak, now + rebuilt)
        now -= size
    return peak


def test_budgets_are_met_with_the_fewest_seconds() -> None:
    costs = [Cost(1.0 + (place % 3), 100 - 7 * place, 10) for place in range(7)]
    for in_flight in (1, 3):
        plain = in_flight * sum(cost.kept for cost in costs)
        assert groups_within(costs, plain, in_flight) == []
        seconds = []
        for part in (0.95, 0.8, 0.6, 0.5):
            groups = groups_within(costs, part * plain, in_flight)
            assert groups and peak_of(costs, groups, in_flight) <= part * plain
            seconds.append(sum(cost.seconds for begin, end in groups for cost in costs[begin:end]))
        assert seconds == sorted(seconds)
        least = least_budget(costs, in_flight)
        assert groups_within(costs, least, in_flight) and not groups_within(costs, 0.99 * least, in_flight)
    # Of blocks that keep as much, the fastest one.
    assert groups_within([Cost(2, 100, 1), Cost(1, 100, 1), Cost(3, 100, 1)], 210) == [(1, 2)]


def loss_of(model: nn.Module) -> Tensor:
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(2))
    return model(x).square().mean()  # type: ignore[no-any-return]


def test_a_budget_measures_the_first_forward() -> None:
    torch.manual_seed(0)
    model = Row()
    expected = gradients(model, loss_of)
    _, plain = model.take_kept()
    checkpoint_activations(model, 0.6)
    for _ in range(3):
        assert are_same(gradients(model, loss_of), expected)
        _, kept = model.take_kept()
    runs = [layer.runs for layer in model.layers]
    assert 0.3 * plain < kept <= 0.6 * plain and len(set(runs)) == 2


class Skipping(Row):
    """Leaves out its last layer."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = layer(x)
        return x


def test_a_budget_that_cannot_be_met_is_refused_before_the_first_step() -> None:
    told = r"'100B' cannot be met: {} modules keep \d+ bytes .* but 100 are allowed. Allow \d+ bytes"
    model = checkpoint_activations(Row(), "100B")
    with pytest.raises(ValueError, match=told.format(5)):
        loss_of(model)
    skipping = checkpoint_activations(Skipping(), "100B")
    loss = loss_of(skipping)  # another layer may still come
    with pytest.raises(ValueError, match=told.format(4)):
        loss.backward()
