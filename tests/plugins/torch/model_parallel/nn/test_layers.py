"""The modules of smp.nn on slices beside plain ones in one process on the samples of all ranks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from plain_transformers import LOWEST, Attention, Layer, Output, Transformer
from torch import Tensor, nn
from torch_spawn import run

import smdp.torch.model_parallel as smp

SIZES = (4, 3, 8, 12)  # heads, head size, hidden size, intermediate size
HEADS = {"num_attention_heads": 4, "attention_head_size": 3, "hidden_size": 8}
WIDTHS = {**HEADS, "intermediate_size": 12}
NONE = {"attention_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
SAMPLES, LENGTH = 2, 5


class Called(nn.Module):
    """A model whose only module is called with one tuple."""

    def __init__(self, part: Any, size: int) -> None:
        super().__init__()
        self.part, self.size = part, size

    def forward(self, *inputs: Any) -> Any:
        if self.size:
            found = self.part(inputs[: self.size])
            return found[0] if isinstance(found, tuple) else found
        return self.part(*inputs)


def states(rank: int, *shape: int) -> Tensor:
    return torch.randn(SAMPLES, *shape, generator=torch.Generator().manual_seed(rank + 10))


def batch(rank: int) -> tuple[Tensor, ...]:
    mask = torch.zeros(SAMPLES, 1, 1, LENGTH)
    mask[0, ..., 1 + rank % 3] = LOWEST  # each token sees the first one
    return states(rank, LENGTH, 8), states(rank + 50, LENGTH, 8), mask, mask.flip(-1)


def check(made: Any, plain: Any, size: int, order: tuple[int, ...]) -> None:
    """Compares outputs and gradients; `order` are the indices of the inputs within batch()."""
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.3)
    is_prescaled = smp.state.cfg.prescaled_batch
    sources = smp.rdp_size() if is_prescaled else smp.dp_size()
    batches = [batch(rank) for rank in range(sources)]
    whole = [torch.cat([each[index] for each in batches]).requires_grad_(index < 2) for index in order]
    expected = plain(*whole)
    expected.square().mean().backward()
    model = smp.DistributedModel(Called(made, size))
    model.load_state_dict({f"part.{name}": value for name, value in plain.state_dict().items()})
    number = smp.rdp_rank() if is_prescaled else smp.dp_rank()
    own = [batches[number][index].clone().requires_grad_(index < 2) for index in order]
    found = model(*own)
    here = slice(number * SAMPLES, (number + 1) * SAMPLES)
    torch.testing.assert_close(found, expected[here], rtol=1e-5, atol=1e-5)
    found.square().mean().backward()
    for mine, theirs in zip(own, whole, strict=True):
        if mine.requires_grad:
            torch.testing.assert_close(mine.grad / sources, theirs.grad[here], rtol=1e-5, atol=1e-5)
    gradients = {name: each.grad for name, each in plain.named_parameters()}
    for name, parameter in model.named_parameters():
        wanted = gradients[name.removeprefix("part.")]
        cut = getattr(parameter, "_smdp_cut", None)
        wanted = wanted if cut is None else cut.slices.take(wanted)
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-5, atol=1e-5, msg=name)
    smp.state.model = None


def every_layer(degree: int, **more: Any) -> None:
    smp.init({"tensor_parallel_degree": degree, "ddp": True, **more})
    check(smp.nn.DistributedLinear(8, 6), nn.Linear(8, 6), 0, (0,))
    norm = smp.nn.DistributedLayerNorm(8)
    assert isinstance(norm, smp.nn.FusedLayerNorm) and not isinstance(nn.Linear(2, 2), smp.nn.FusedLayerNorm)
    check(norm, smp.nn.FusedLayerNorm(8), 0, (0,))
    for pre, post in ((True, False), (False, True), (True, True)):
        norms = {"pre_layernorm": pre, "post_layernorm": post}
        options: Any = {**NONE, **norms}
        check(
            smp.nn.DistributedAttentionLayer(**HEADS, **options, causal_mask_size=9),
            Attention(*SIZES[:3], pre, post, True),
            2,
            (0, 2),
        )
        check(
            smp.nn.DistributedTransformerOutputLayer(8, 12, hidden_dropout_prob=0.0, **norms),
            Output(8, 12, pre, post),
            0,
            (0,),
        )
        check(
            smp.nn.DistributedTransformer(2, **WIDTHS, **options, causal_mask_size=9),
            Transformer(2, pre, post, True, False, SIZES),
            2,
            (0, 2),
        )
    check(
        smp.nn.DistributedTransformerLayer(**WIDTHS, **NONE, add_cross_attention=True),
        Reordered(Layer(False, True, False, True, SIZES)),
        4,
        (0, 1, 2, 3),
    )
    smp.shutdown()


class Reordered(Layer):
    """A layer whose inputs have the order of smp.nn."""

    def __init__(self, layer: Layer) -> None:
        nn.Module.__init__(self)
        self.__dict__ |= vars(layer)

    def forward(self, hidden: Tensor, cross: Any = None, mask: Any = None, cross_mask: Any = None) -> Tensor:
        return super().forward(hidden, mask, cross, cross_mask)


def two_ranks() -> None:
    for optimize in ("memory", "speed"):
        every_layer(2, optimize=optimize)
        every_layer(2, optimize=optimize, prescaled_batch=True)


def four_ranks() -> None:
    for optimize in ("memory", "speed"):
        every_layer(4, optimize=optimize)
        every_layer(2, optimize=optimize)


def one_rank() -> None:
    every_layer(1)
    smp.init({"ddp": True, "fp16_params": True})
    for lowest in (-math.inf, LOWEST, torch.finfo(torch.float16).min):
        masked_samples(lowest)
    smp.shutdown()


def masked_samples(lowest: float) -> None:
    """A sample whose tokens are all masked gives finite values in fp16, with dropout and without."""
    for probability in (0.0, 0.1):
        torch.manual_seed(1)
        dropped = {"attention_dropout_prob": probability, "hidden_dropout_prob": probability}
        layer = smp.nn.DistributedAttentionLayer(**HEADS, **dropped, causal_mask_size=9)
        with torch.no_grad():  # scores far below 0, which add to the mask
            layer.key.weight.copy_(-layer.query.weight.mul_(30.0))
            layer.key.bias.copy_(-layer.query.bias)
        model = smp.DistributedModel(Called(layer, 2))
        assert all(each.dtype is torch.float16 for each in model.parameters())
        hidden, mask = torch.randn(SAMPLES, LENGTH, 8), torch.zeros(SAMPLES, 1, 1, LENGTH)
        mask[0] = lowest
        found = model(hidden, mask)
        found.square().mean().backward()
        assert found.isfinite().all(), (lowest, probability)
        assert all(each.grad.isfinite().all() for each in model.parameters()), (lowest, probability)
        smp.state.model = None


def test_two_ranks() -> None:
    run(two_ranks)


def test_degree_one() -> None:
    run(one_rank, 1)


@pytest.mark.slow
def test_four_ranks() -> None:
    run(four_ranks, 4)


def test_flash_attention() -> None:
    qkv = torch.randn(2, 5, 3, 4, 6)
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    mask = torch.zeros(2, 1, 1, 5)
    mask[0, ..., 3] = LOWEST
    scores = query @ key.transpose(-2, -1) / 6**0.5 / 3 + mask
    scores = scores.masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), LOWEST)
    layer = smp.nn.FlashAttentionLayer(0.5, 6, True, True, layer_idx=2).eval()
    torch.testing.assert_close(layer(qkv, mask, causal=True), scores.softmax(-1) @ value)
    with pytest.raises(ValueError, match=r"\(2, 1, 1, 5\) is boolean, but a mask is added to scores: 0"):
        layer(qkv, mask == 0)
    mask[0, ..., :3] = -math.inf  # queries that see only masked keys
    later = qkv.clone()
    later[:, 4, 2] += 100
    for each in (layer, smp.nn.FlashAttentionLayer(1e-9)):  # the latter with dropout, of nothing
        torch.manual_seed(0)
        first, second = each(qkv, mask, causal=True), each(later, mask, causal=True)
        assert first.isfinite().all() and torch.equal(first[..., :4, :], second[..., :4, :])
