"""smp.nn.DistributedTransformerLMHead trained in slices and stages beside a plain model in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plain_transformers import LMHead
from torch import Tensor, nn
from torch_spawn import run

import smdp.torch.model_parallel as smp

VOCABULARY, POSITIONS, SAMPLES, LENGTH, STEPS = 11, 6, 4, 5, 2
SIZES = (4, 3, 8, 12)


class Model(nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self.inner((ids, mask, types, None, labels))
        return found


def made(dropout: float, *, is_causal: bool) -> Any:
    return smp.nn.DistributedTransformerLMHead(
        2,
        *SIZES,
        VOCABULARY,
        POSITIONS,
        attention_dropout_prob=dropout,
        hidden_dropout_prob=dropout,
        num_token_types=2,
        causal_mask_size=POSITIONS if is_causal else None,
        pre_layernorm=True,
        post_layernorm=False,
    )


def batch(step: int, rank: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    ids, labels = torch.randint(VOCABULARY, (2, SAMPLES, LENGTH), generator=generator)
    mask = torch.zeros(SAMPLES, LENGTH)
    mask[0, 2] = 1
    return ids, mask, torch.randint(2, (SAMPLES, LENGTH), generator=generator), labels


def trained(*, is_causal: bool = True, dropout: float = 0.0, **more: Any) -> None:
    smp.init({"ddp": True, "microbatches": 2, "tensor_parallel_degree": 2, **more})
    is_prescaled = smp.state.cfg.prescaled_batch
    torch.manual_seed(0)
    plain = LMHead(2, VOCABULARY, POSITIONS, is_causal, SIZES)
    inner = made(dropout, is_causal=is_causal)
    if not smp.state.cfg.auto_partition:
        layers = inner.transformer.seq_layers
        smp.set_partition(layers[1], 1)
        smp.set_activation_checkpointing(layers, pack_args_as_tuple=True)
    model = smp.DistributedModel(Model(inner))
    model.load_state_dict({f"inner.{name}": value for name, value in plain.state_dict().items()})
    reference = torch.optim.SGD(plain.parameters(), lr=0.2)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.2))

    @smp.step
    def train(*inputs: Tensor) -> Any:
        loss, logits = model(*inputs)
        model.backward(loss)
        return loss, logits

    for step in range(STEPS):
        number = smp.rdp_rank() if is_prescaled else smp.dp_rank()
        batches = [batch(step, rank) for rank in range(smp.rdp_size() if is_prescaled else smp.dp_size())]
        reference.zero_grad()
        expected, logits = plain(*(torch.cat(each) for each in zip(*batches, strict=True)))
        expected.backward()
        reference.step()
        optimizer.zero_grad()
        found, own = train(*batches[number])
        optimizer.step()
        losses = smp.allgather(float(found.reduce_mean()), smp.DP_GROUP)
        if dropout:
            assert all(value == value and value < 10 for value in losses)
            continue
        assert abs(sum(losses) / len(losses) - expected.item()) < 1e-5
        here = logits[number * SAMPLES : (number + 1) * SAMPLES]
        torch.testing.assert_close(own.concat(), here, rtol=1e-5, atol=1e-5)
    state = model.state_dict()
    assert {name.removeprefix("inner.") for name in state} == set(plain.state_dict())
    for name, value in plain.state_dict().items() if not dropout else ():
        torch.testing.assert_close(state[f"inner.{name}"], value, rtol=1e-5, atol=1e-5, msg=name)
    # What all ranks of a tensor-parallel group hold must stay the same, also with dropout.
    for name, parameter in model.local_named_parameters():
        if not model.is_distributed_parameter(parameter):
            told = smp.allgather(parameter.detach(), smp.DP_GROUP)
            assert all(torch.equal(each, told[0]) for each in told), name
    smp.shutdown()


def on_two_ranks() -> None:
    trained()
    trained(optimize="speed", is_causal=False)
    trained(optimize="speed", prescaled_batch=True)
    trained(dropout=0.2)
    trained(dropout=0.2, optimize="speed")


def in_stages() -> None:
    trained(partitions=2)
    trained(partitions=2, optimize="speed", prescaled_batch=True)
    by_hand: Any = {"auto_partition": False, "default_partition": 0, "placement_strategy": "spread"}
    trained(partitions=2, **by_hand)
    trained(partitions=2, dropout=0.2, **by_hand)
    trained(partitions=2, dropout=0.2, optimize="speed")


def in_all_ways() -> None:
    for optimize in ("memory", "speed"):
        for is_prescaled in (False, True):
            trained(optimize=optimize, prescaled_batch=is_prescaled, tensor_parallel_degree=4)
            trained(optimize=optimize, prescaled_batch=is_prescaled, partitions=2)
            trained(optimize=optimize, prescaled_batch=is_prescaled)


def test_on_two_ranks() -> None:
    run(on_two_ranks)


def test_in_stages() -> None:
    run(in_stages, 4)


@pytest.mark.slow
def test_in_all_ways() -> None:
    run(in_all_ways, 4)
