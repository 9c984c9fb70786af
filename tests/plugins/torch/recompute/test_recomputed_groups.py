"""Blocks recompute their activations in groups: the same bits, and only what a policy says is kept."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import pytest
import torch
from recomputed_models import ROWS, WIDTH, Layer, Row, are_same, gradients
from torch import Tensor, nn

from smdp.torch import checkpoint_activations
from smdp.torch.pipelining.gradients.weight_gradients import PostponedGradients, split_backward

INPUT = ROWS * WIDTH * 4
KEPT = {"each": 5, "group_2": 3, "group_3": 2, "contiguous": 1}


def rows() -> Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(2))


def made(kind: type[nn.Module] = Row) -> Any:
    torch.manual_seed(0)
    return kind()


def loss_of(model: nn.Module) -> Tensor:
    return model(rows()).square().mean()  # type: ignore[no-any-return]


@pytest.mark.parametrize("policy", KEPT)
def test_only_the_inputs_of_groups_are_kept(policy: str) -> None:
    plain, model = made(), checkpoint_activations(made(), policy)
    expected = gradients(plain, loss_of)
    assert plain.take_kept()[1] > 5 * 10 * INPUT
    model = copy.deepcopy(model)
    for _ in range(2):
        assert are_same(gradients(model, loss_of), expected)
        assert model.take_kept() == (KEPT[policy], KEPT[policy] * INPUT)
    assert {layer.runs for layer in model.layers} == {4}
    assert model.state_dict().keys() == plain.state_dict().keys()
    with torch.no_grad():
        model(rows())
    assert {layer.runs for layer in model.layers} == {5}
    for each in (plain, model):  # changed in place between the blocks, where no call sees it
        for layer in each.layers:
            layer.register_forward_hook(lambda *call: call[2].mul_(1.5))
    assert are_same(gradients(model, loss_of), gradients(plain, loss_of))


def test_values_between_the_blocks_of_a_group_are_freed() -> None:
    model = checkpoint_activations(made(), "contiguous")
    seen: list[weakref.ref[Tensor]] = []
    for layer in model.layers:
        layer.register_forward_hook(lambda *call: seen.append(weakref.ref(call[2].untyped_storage())))
    loss = loss_of(model)
    assert [each() is not None for each in seen] == [False] * 4 + [True]
    loss.backward()


class Attending(nn.Module):
    """A block with attention scores, which are large, and a product in place."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)

    def forward(self, hidden: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        query = self.query(hidden).mul_(2.0)
        scores = self.dropout((query @ hidden.transpose(1, 2) + mask).softmax(-1))
        return hidden + torch.relu_(self.value(scores @ hidden)), scores.detach()


class Attended(nn.Module):
    """Passes a mask to all blocks, and takes one of the two values that they return."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attending() for _ in range(4))

    def forward(self, hidden: Tensor) -> Tensor:
        mask = hidden.new_zeros(64, 64).masked_fill_(torch.ones(64, 64).triu(1) > 0, -1e4)
        for block in self.blocks:
            hidden, _ = block(hidden, mask)
        return hidden


@pytest.mark.parametrize("policy", ["each", "group_3", "contiguous", "selective", 0.6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_same_bits_with_attention_in_16_bits(policy: Any, dtype: torch.dtype) -> None:
    def loss(model: nn.Module) -> Tensor:
        hidden = torch.randn(2, 64, WIDTH, generator=torch.Generator().manual_seed(2), requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            return model(hidden.to(weight.dtype)).float().square().mean()  # type: ignore[no-any-return]

    model = made(Attended)
    if dtype == torch.float16:
        model.half()
    weight = next(model.parameters())
    expected = gradients(model, loss)
    checkpoint_activations(model, policy)
    for _ in range(3):
        assert are_same(gradients(model, loss), expected)


class Twice(nn.Module):
    """A sequence with modules in place and without parameters, called twice before backward."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + self.body(x + 1)  # type: ignore[no-any-return]


def test_statistics_are_counted_once() -> None:
    plain, model = made(Twice), checkpoint_activations(made(Twice), "contiguous")
    for _ in range(2):
        assert are_same(gradients(model, loss_of), gradients(plain, loss_of))
    assert all(map(torch.equal, model.state_dict().values(), plain.state_dict().values()))


def test_backward_in_parts_and_twice() -> None:
    plain, model = made(), checkpoint_activations(made(), "group_2")
    for each in (plain, model):
        torch.manual_seed(1)
        x = rows().requires_grad_()
        loss = each(x).square().mean()
        (first,) = torch.autograd.grad(loss, x, retain_graph=True)
        (again,) = torch.autograd.grad(loss, x, retain_graph=True)
        loss.backward()
        assert torch.equal(first, again) and x.grad is not None and torch.equal(first, x.grad)
    assert all(
        torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters(), strict=True)
    )


def test_postponed_weight_gradients_use_what_was_recomputed_for_inputs() -> None:
    plain, model = made(), checkpoint_activations(made(), "group_2")
    for each in (plain, model):
        for name, layer in each.layers.named_children():
            assert split_backward(layer, name) == []
    expected = []
    for each in (plain, model):
        for is_split in (False, True):  # the first call finds out what modules return
            each.zero_grad()
            each.take_kept()
            torch.manual_seed(1)
            postponed = PostponedGradients()
            with postponed:
                loss = loss_of(each)
            count, size = each.take_kept()
            loss.backward()
            assert is_split == all(parameter.grad is None for parameter in each.parameters())
            del loss
            postponed.compute()
        expected.append([parameter.grad for parameter in each.parameters()])
    assert are_same(*expected)
    assert (count, size) == (3, 3 * INPUT)
    assert [layer.runs for layer in model.layers] == [4] * 5


class Counting(Layer):
    def forward(self, hidden: Tensor) -> Tensor:
        self.runs += 1
        return super().forward(hidden[: -self.runs])


def test_a_forward_that_differs_is_named() -> None:
    model = made()
    model.layers[1] = Counting()
    checkpoint_activations(model)
    with pytest.raises(RuntimeError, match=r"'layers.1' saves float32\[\d+, 16\] where it saved float32"):
        loss_of(model).backward()


def test_a_change_of_the_input_is_named() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))
    checkpoint_activations(model, "each")
    with pytest.raises(ValueError, match="module '1' changes its input in place"):
        model(rows())


def test_what_selective_keeps_passes_the_hooks_around_it() -> None:
    """As those of offloading, which then moves it."""
    model = checkpoint_activations(made(Attended), "selective")
    hidden = torch.randn(2, 64, WIDTH, requires_grad=True)
    seen: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor.clone()

    counts = []
    for _ in range(3):  # the first call keeps only inputs
        seen.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor.clone()):
            loss = gradients(model, lambda model: model(hidden).square().mean())
        counts.append(len(seen))
        assert are_same(loss, gradients(model, lambda model: model(hidden).square().mean()))
    assert counts[1] == counts[2] == counts[0] + 4, counts  # a product of each block
