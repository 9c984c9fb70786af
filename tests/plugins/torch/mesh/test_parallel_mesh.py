"""One owner of ranks and process groups: groups are made once, and a new membership is one assignment."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pipeline_models import Language, adam, batches, differences, language_loss, made, train_alone
from torch_spawn import run

import smdp
from smdp.placement import Placement


def groups_under_smp() -> None:
    import smdp.torch.model_parallel as smp
    from smdp.torch.pipelining.engine.lockstep import Lockstep

    made_groups: list[tuple[int, ...]] = []
    new_group = dist.new_group

    def counted(ranks: list[int], *args: Any, **kwargs: Any) -> Any:
        made_groups.append(tuple(ranks))
        return new_group(ranks, *args, **kwargs)

    dist.new_group = counted
    config = {"partitions": 2, "ddp": True, "microbatches": 2, "placement_strategy": "spread"}
    smp.init({**config, "deterministic_server": True})
    model = smp.DistributedModel(made(lambda: Language(tied=True)))
    optimizer = smp.DistributedOptimizer(adam(model))

    @smp.step
    def train(model: Any, batch: Any) -> Any:
        loss = language_loss(model(**batch), batch)
        model.backward(loss)
        return loss.detach()

    for batch in batches(2):
        optimizer.zero_grad()
        train(model, batch).reduce_mean().item()
        optimizer.clip_master_grads(1.0)
        optimizer.step()
    model.state_dict()
    smp.barrier(smp.TP_GROUP)
    # Once for the script and once for steps; a rank alone and the world only for the script. The tied weights
    # of the first and the last stage need no group beside that of their pipeline.
    of_steps = [(0, 1), (0, 2), (1, 3), (2, 3)]
    of_script = [(dist.get_rank(),), (0, 1, 2, 3), *of_steps]
    assert sorted(made_groups) == sorted(of_steps + of_script)
    assert isinstance(model.pipe._steps.handlers["RESUME"], Lockstep)
    mesh = model.pipe.mesh
    assert smp.get_pp_process_group() is mesh.group("pp") is smp.get_mp_process_group()
    assert mesh.step_group("pp") is not mesh.group("pp")


def test_groups_are_made_once_under_smp() -> None:
    run(groups_under_smp, 4)


def a_new_membership() -> None:
    import smdp.torch

    steps = batches(4)
    alone = made(lambda: Language(tied=True))
    train_alone(alone, steps, 8)
    pipe = smdp.torch.pipeline(made(lambda: Language(tied=True)), 2, 4, example_inputs=steps[0])
    mesh, optimizer = pipe.mesh, adam(pipe)
    axes = ("pp", "rdp")
    before = [mesh.step_group(axis) for axis in axes]
    for index, batch in enumerate(steps):
        optimizer.zero_grad()
        mine = {name: item.chunk(2)[mesh.replica] for name, item in batch.items()}
        pipe.train_step(mine, language_loss)
        optimizer.step()
        if index == 1:
            mesh.placement = Placement(2, 1, 2)
            with pytest.raises((ValueError, smdp.SmdpError)):
                dist.barrier(group=before[0])
    assert all(mesh.step_group(axis) is not old for axis, old in zip(axes, before, strict=True))
    assert all(far < 1e-5 for far in differences(pipe, alone).values())

    rank = dist.get_rank()
    mesh.placement = Placement(2, 1, 2, "spread")
    assert (mesh.stage_rank, mesh.replica) == (rank // 2, rank % 2)
    for axis in axes:
        total = torch.tensor([rank])
        dist.all_reduce(total, group=mesh.step_group(axis))
        assert total == sum(mesh.ranks(axis)), axis

    with pytest.raises(ValueError, match="has 1 rank, but the world has 4"):
        mesh.placement = Placement(1, 1, 1)
    assert mesh.placement.size == 4
    dist.destroy_process_group()
    store = f"file://{os.environ['SMDP_TEST_STORE']}.again"
    dist.init_process_group("smdp", init_method=store, rank=3 - rank, world_size=4)
    mesh.placement = Placement(4, 1, 1)
    assert mesh.stage_rank == 3 - rank
    dist.barrier(group=mesh.step_group("pp"))


def test_a_new_membership_is_one_assignment() -> None:
    run(a_new_membership, 4)


def an_abort() -> None:
    from smdp.torch.mesh.parallel_mesh import ParallelMesh

    mesh = ParallelMesh.of_world(pp=2)
    mesh.make("world", "pp")
    mesh.make_for_steps("pp")
    if dist.get_rank() == 0:
        mesh.abort("a step failed")
    with pytest.raises(smdp.SmdpError, match="a step failed"):
        dist.barrier(group=mesh.step_group("pp"))
    for axis in ("pp", "world"):
        dist.barrier(group=mesh.group(axis))


def test_an_abort_of_a_step_leaves_the_script_its_groups() -> None:
    run(an_abort)
