"""Stages that recompute their blocks: what they keep, and the same bits under every kind of schedule."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from torch_spawn import run

POLICIES = ("each", "group_2", "group_3", "contiguous")


def keeps_inputs_of_groups() -> None:
    import torch
    import torch.distributed as dist
    from pipeline_models import made
    from recomputed_models import ROWS, WIDTH, Row

    import smdp.torch
    from smdp import memory
    from smdp.torch.pipelining.analysis.tracing import trace
    from smdp.torch.pipelining.units.units import find_units

    def loss_fn(output: torch.Tensor) -> torch.Tensor:
        return output.square().mean()

    rank = dist.get_rank()
    batch = torch.randn(2 * ROWS, WIDTH, generator=torch.Generator().manual_seed(2))
    traced = trace(made(Row), find_units(made(Row)), (batch[:ROWS],)).by_work().trace
    pins = {"layers.1": 0, "layers.2": 1}
    for policy in POLICIES:
        model = made(Row)
        pipe = smdp.torch.pipeline(model, 2, 2, "1f1b", batch, loss_fn=loss_fn, recompute=policy, pins=pins)
        pipe.train_step(batch, loss_fn)
        model.take_kept()
        pipe.train_step(batch, loss_fn)
        count, size = model.take_kept()
        # Of [a, b | c, d, e], per microbatch. The first inputs of the first stage are one tensor, the batch.
        groups = {"each": (2, 3), "group_2": (1, 2), "group_3": (1, 1), "contiguous": (1, 1)}[policy][rank]
        assert count == 2 * groups - (rank == 0), policy
        estimate = memory.estimate(
            traced,
            pipeline=2,
            stage_sizes=(2, 3),
            microbatch_size=ROWS,
            precision="fp32",
            checkpointing=policy,
        )
        inputs = 2 * ROWS * WIDTH * 4 if rank == 0 else 0
        assert size - inputs == pytest.approx(2 * estimate.stages[rank].activations, rel=0.1)
        counted = pipe.split.partition.stages[rank].activation_bytes  # with the whole batch
        assert size - inputs == pytest.approx(2 * (counted - inputs), rel=0.1), policy


def same_bits() -> None:
    import torch
    import torch.distributed as dist
    from pipeline_models import Language, batches, language_loss, made

    import smdp.torch

    log = logging.getLogger("smdp.torch.recompute.budget_rule")
    log.setLevel(logging.INFO)
    measured: list[Any] = []
    log.addFilter(lambda record: measured.append(record.args[3]) is not None)  # type: ignore[index]
    batch = batches(1)[0]
    for schedule in ("zb_v", "zb_1p", "interleaved_1f1b"):
        expected: dict[str, torch.Tensor] = {}
        for policy in (None, "contiguous", "selective", 0.5):
            pipe = smdp.torch.pipeline(
                made(lambda: Language(8, dropout=0.2)), 2, 4, schedule, seed=3, recompute=policy
            )
            for _ in range(2):
                pipe.zero_grad()
                pipe.train_step(batch, language_loss)
            found = {name: parameter.grad for name, parameter in pipe.named_parameters()}
            expected = expected or found
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[name], each) for name, each in expected.items()), (schedule, policy)
        # The budget was divided over the blocks of both virtual stages.
        own = {name.split(".")[1] for name in found if name.startswith("blocks.")}
        assert measured.pop() == len(own) > 2
    with pytest.raises(ValueError, match=r"recompute = 'some' is not valid"):
        smdp.torch.pipeline(made(Language), recompute="some")
    budgeted = smdp.torch.checkpoint_activations(made(Language), 0.5)
    with pytest.raises(ValueError, match=r"pass it as pipeline\(\.\.\., recompute=\.\.\.\)"):
        smdp.torch.pipeline(budgeted)
    pipe = smdp.torch.pipeline(made(Language), 2, 4, recompute="2KB")
    with pytest.raises((ValueError, RuntimeError), match="recompute = '2KB' cannot be met"):
        pipe.train_step(batch, language_loss)
    assert dist.is_initialized()


def same_bits_divided() -> None:
    import torch
    from divided_models import PLAN as plan
    from divided_models import Model, loss_of

    from smdp.torch import checkpoint_activations, tensor_parallel

    tokens = torch.randint(20, (4, 6), generator=torch.Generator().manual_seed(1))
    expected: list[Any] = []
    for policy in (None, "each", "contiguous", "selective", 0.5):
        torch.manual_seed(0)
        model = tensor_parallel(Model(4, 0.2), 2, plan=plan)
        if policy is not None:
            checkpoint_activations(model, policy)
        for _ in range(3):
            model.zero_grad()
            torch.manual_seed(2)
            loss_of(model, tokens).backward()
        found = [parameter.grad for parameter in model.parameters()]
        expected = expected or found
        assert all(map(torch.equal, found, expected)), policy


def refuses_everywhere() -> None:
    """The budget is too small for the rows of rank 1 alone."""
    import torch
    import torch.distributed as dist
    from recomputed_models import ROWS, WIDTH, Row

    from smdp.torch import DistributedDataParallel, ShardedDataParallel, checkpoint_activations

    budget = 4 * ROWS * 300 * 4
    rows = torch.randn(ROWS * (1 if dist.get_rank() == 0 else 50), WIDTH)
    told = rf"policy = {budget} cannot be met: .* at least \d+ with it, but {budget} are allowed"
    for wrap in (DistributedDataParallel, ShardedDataParallel):
        model = wrap(checkpoint_activations(Row(), budget))
        with pytest.raises((ValueError, RuntimeError), match=told):
            model(rows).sum().backward()
        dist.barrier()


def test_a_budget_that_one_rank_cannot_meet_is_refused_on_all() -> None:
    run(refuses_everywhere)


def test_groups_of_a_stage_keep_their_inputs() -> None:
    run(keeps_inputs_of_groups)


def test_recomputed_blocks_give_the_same_bits_under_zero_bubble_schedules() -> None:
    run(same_bits)


def test_divided_blocks_give_the_same_bits() -> None:
    run(same_bits_divided)
