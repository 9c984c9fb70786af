"""FSDP2, DTensor, checkpoints and pipelining over smdp."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch_spawn import run


def mlp() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))


def data(step: int, rank: int) -> Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + rank))


def full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def check_fsdp2() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("cpu", (size,))
    expected = mlp()
    sharded = copy.deepcopy(expected)
    for layer in sharded:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (expected, sharded)]
    for step in range(4):
        batches = [data(step, other) for other in range(size)]
        expected(torch.cat(batches)).square().mean().backward()
        sharded(batches[rank]).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for got, want in zip(sharded.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(full(got), want, rtol=0, atol=1e-5)
    mixed = fully_shard(
        mlp(), mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
    )
    mixed(data(0, rank)).square().mean().backward()
    mixed.set_allocate_memory_from_process_group_for_comm(True)
    mixed(data(1, rank)).square().mean().backward()
    hybrid = fully_shard(mlp(), mesh=init_device_mesh("cpu", (1, size), mesh_dim_names=("dp", "shard")))
    hybrid(data(0, rank)).square().mean().backward()


def check_dtensor() -> None:
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    whole = torch.randn(6, 5)
    for dim in (0, 1):
        sharded = distribute_tensor(whole, mesh, [Shard(dim)])
        assert torch.equal(sharded.full_tensor(), whole)
        assert torch.equal(sharded.redistribute(placements=[Replicate()]).to_local(), whole)
    moved = distribute_tensor(whole, mesh, [Shard(0)]).redistribute(placements=[Shard(1)])
    assert torch.equal(moved.full_tensor(), whole)
    expected, parallel = mlp(), mlp()
    parallelize_module(parallel, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    batch = data(0, 0)
    got, want = parallel(batch), expected(batch)
    torch.testing.assert_close(full(got), want)
    full(got).square().mean().backward()
    want.square().mean().backward()
    for mine, other in zip(parallel.parameters(), expected.parameters(), strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(full(mine.grad), other.grad)


def check_checkpoint() -> None:
    folder = Path(os.environ["SMDP_TEST_FOLDER"])
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = fully_shard(mlp(), mesh=mesh)
    saved = [full(parameter).clone() for parameter in net.parameters()]
    dcp.save({"net": net.state_dict()}, checkpoint_id=folder / "plain")
    dcp.async_save({"net": net.state_dict()}, checkpoint_id=folder / "async").result()
    for name in ("plain", "async"):
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.zero_()
        state = {"net": net.state_dict()}
        dcp.load(state, checkpoint_id=folder / name)
        net.load_state_dict(state["net"])
        for got, want in zip(net.parameters(), saved, strict=True):
            assert torch.equal(full(got), want)
        dist.barrier()


def check_pipelining() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(7)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(size)]
    expected = copy.deepcopy(nn.Sequential(*layers))
    x, target = data(0, 0), data(1, 0)

    def loss(output: Tensor, wanted: Tensor) -> Tensor:
        return (output - wanted).square().mean()

    for schedule_class in (Schedule1F1B, ScheduleGPipe):
        stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
        schedule = schedule_class(stage, n_microbatches=4, loss_fn=loss)
        layers[rank].zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == size - 1:
            losses: list[Tensor] = []
            schedule.step(target=target, losses=losses)
        else:
            schedule.step()
        expected.zero_grad()
        loss(expected(x), target).backward()
        for mine, other in zip(layers[rank].parameters(), expected[rank].parameters(), strict=True):
            torch.testing.assert_close(mine.grad, other.grad)
        dist.barrier()


def parallel() -> None:
    for check in (check_fsdp2, check_dtensor, check_checkpoint, check_pipelining):
        check()
        print(check.__name__, "passed")


def test_parallel() -> None:
    run(parallel, 2)
