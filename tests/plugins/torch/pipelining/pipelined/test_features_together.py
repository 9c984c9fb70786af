"""Recomputation, offloading, 16 bits and sharded optimizers, alone and together, in pipelines with slices."""

from __future__ import annotations

import functools
import itertools
import os
import tempfile
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from divided_models import PLAN, VOCABULARY, WIDTH, Block, own_part
from torch import Tensor, nn
from torch.nn import functional
from torch_spawn import run

import smdp.torch
from smdp.torch import MixedPrecision, ShardedOptimizer, lower_precision
from smdp.torch.pipelining.engine import offload_actions

STEPS, BATCH, LENGTH, MICROBATCHES = 2, 16, 6, 4
SCHEDULES = ("1f1b", "zb_v")


class Gpt(nn.Module):
    """A GPT-2 with places, and norms before attention and after the last block; its head may be tied."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(0.0, 4) for _ in range(6))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))  # type: ignore[no-any-return]


class Features(NamedTuple):
    """What a pipeline is trained with."""

    recompute: str | None = None
    is_offloaded: bool = False
    has_16_bits: bool = False
    is_sharded: bool = False


POLICIES = (None, "each", "group_2", "selective")
ALL = tuple(Features(*each) for each in itertools.product(POLICIES, (False, True), (False,), (False, True)))


def batches() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [{"tokens": torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)} for _ in range(STEPS)]


def loss_fn(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["tokens"][:, 1:].flatten())


def made(tensor: int, has_16_bits: bool) -> nn.Module:
    torch.manual_seed(0)
    model = Gpt(tied=tensor > 1)  # the gradient of a tied weight is a sum in another order
    return lower_precision(model, torch.bfloat16) if has_16_bits else model


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@functools.cache
def alone(tensor: int, microbatches: int, has_16_bits: bool) -> tuple[nn.Module, list[float]]:
    """Returns the model that one process has trained, and its losses."""
    model = made(tensor, has_16_bits)
    optimizer: Any = sgd(model)
    if has_16_bits:
        optimizer = MixedPrecision(optimizer, model)
    losses = []
    for batch in batches():
        optimizer.zero_grad()
        found = []
        for tokens in batch["tokens"].chunk(microbatches):
            loss = loss_fn(model(tokens), {"tokens": tokens})
            part = loss / microbatches
            optimizer.backward(part) if has_16_bits else part.backward()
            found.append(loss.item())
        optimizer.step()
        losses.append(sum(found) / microbatches)
    return model, losses


def trained(tensor: int, schedule: str, features: Features, folder: str) -> tuple[Any, list[float]]:
    """Returns the pipeline after all steps, and its losses."""
    offload = f"disk:{folder}" if features.is_offloaded else None
    model = made(tensor, features.has_16_bits)
    if tensor > 1:
        smdp.torch.tensor_parallel(model, tensor, PLAN)
    pipe = smdp.torch.pipeline(
        model, 2, MICROBATCHES, schedule, recompute=features.recompute, offload=offload, horizon=1
    )
    optimizer: Any = sgd(pipe)
    if features.is_sharded:
        dtype = torch.float32 if features.has_16_bits else None
        optimizer = ShardedOptimizer(optimizer, pipe, master_dtype=dtype)
    if features.has_16_bits:
        optimizer = MixedPrecision(optimizer, pipe)
    losses = []
    for batch in batches():
        optimizer.zero_grad()
        own = {name: item.chunk(pipe.mesh.replicas)[pipe.mesh.replica] for name, item in batch.items()}
        scaler = optimizer if features.has_16_bits else None
        losses.append(pipe.train_step(own, loss_fn, scaler=scaler).item())
        optimizer.step()
    return pipe, losses


def farthest(pipe: nn.Module, model: nn.Module) -> float:
    """Returns the largest difference of a parameter from that of one process."""
    expected = dict(model.named_parameters())
    return max(
        (parameter.float() - own_part(expected[name], parameter).float()).abs().max().item()
        for name, parameter in pipe.named_parameters()
    )


def check(tensor: int, schedule: str, others: tuple[Features, ...], has_16_bits: bool) -> None:
    """Compares a pipeline with one process, and with the same pipeline that has more features.

    Args:
        tensor: The number of slices.
        schedule: The schedule.
        others: The features, which compute the same numbers.
        has_16_bits: Whether all train with 16 bits.
    """
    with tempfile.TemporaryDirectory() as folder:
        plain, losses = trained(tensor, schedule, Features(has_16_bits=has_16_bits), folder)
        model, expected = alone(tensor, MICROBATCHES * plain.mesh.replicas, has_16_bits)
        if tensor == plain.mesh.replicas == 1:
            assert farthest(plain, model) == 0
        else:  # sums in another order, of numbers that are rounded to 16 bits
            assert farthest(plain, model) < (2**-6 if has_16_bits else 1e-5)
        if plain.mesh.replicas == 1:
            assert losses == pytest.approx(expected, rel=0.01 if has_16_bits else 1e-5)
        for features in others:
            where = f"{schedule} with {tensor} slices: {features}"
            pipe, found = trained(tensor, schedule, features._replace(has_16_bits=has_16_bits), folder)
            assert found == losses, where
            assert all(map(torch.equal, pipe.parameters(), plain.parameters())), where
        assert os.listdir(folder) == []


def some(tensor: int, *others: Features) -> None:
    """Checks some features under one schedule, and the last of them also under another, with 16 bits."""
    offload_actions.LEAST_BYTES = 1  # type: ignore[attr-defined]
    check(tensor, "1f1b", others, has_16_bits=False)
    check(tensor, "zb_v", others[-1:], has_16_bits=True)


def stages() -> None:
    some(1, Features("each"), Features("selective"), Features(None, True), Features("group_2", True))


def slices() -> None:
    some(2, Features("group_2"), Features("selective", True))


def replicas() -> None:
    some(1, Features(is_sharded=True), Features("each", True, is_sharded=True))


def everything() -> None:
    offload_actions.LEAST_BYTES = 1  # type: ignore[attr-defined]
    for tensor, schedule, has_16_bits in itertools.product((1, 2), SCHEDULES, (False, True)):
        replicas = dist.get_world_size() // (2 * tensor)
        if replicas in (1, 2):
            others = tuple(each for each in ALL if replicas > 1 or not each.is_sharded)
            check(tensor, schedule, others, has_16_bits)


@pytest.mark.parametrize(("function", "ranks"), [(stages, 2), (slices, 4), (replicas, 4)])
def test_features_do_not_change_what_stages_compute(function: Any, ranks: int) -> None:
    run(function, ranks)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_all_features_together(ranks: int) -> None:
    run(everything, ranks, timeout=850)
