"""Tensors that the core cannot work on itself: copied to contiguous host memory and back."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch_spawn import run

import smdp.torch


def transposed() -> torch.Tensor:
    return torch.full((3, 4), float(dist.get_rank() + 1), device="cpu").t()


def check_default_device() -> None:
    torch.set_default_device("meta")
    tensor = transposed()
    dist.all_reduce(tensor)
    assert (tensor == 3).all()


def test_a_default_device_has_no_say() -> None:
    run(check_default_device)


def check_polling() -> None:
    tensor = transposed()
    work = dist.all_reduce(tensor, async_op=True)
    deadline = time.monotonic() + 30
    while not work.is_completed():
        assert time.monotonic() < deadline
    assert (tensor == 3).all()
    work.wait()
    assert (tensor == 3).all()


def test_results_are_there_once_it_is_completed() -> None:
    run(check_polling)


def check_functional_results() -> None:
    """What a functional collective has under way is waited for, and then as any other tensor."""
    rank = dist.get_rank()

    def under_way() -> torch.Tensor:
        return funcol.all_reduce(torch.full((4,), rank + 1.0), "sum", dist.group.WORLD)

    tensor = under_way()
    assert type(tensor) is not torch.Tensor
    dist.all_reduce(tensor)
    assert (tensor == 6).all()
    outputs = [torch.zeros(4) for _ in range(2)]
    dist.all_gather(outputs, under_way())
    assert all((one == 3).all() for one in outputs)
    tensor = under_way() + rank
    dist.broadcast(tensor, 1)
    assert (tensor == 4).all()
    if rank == 0:
        dist.send(under_way(), 1)
    else:
        into = under_way() * 0
        dist.recv(into, 0)
        assert (into == 3).all()


def test_results_of_functional_collectives() -> None:
    run(check_functional_results)


def to_all(tensor: torch.Tensor) -> None:
    dist.broadcast(tensor, 0)


def to_other(tensor: torch.Tensor) -> None:
    dist.send(tensor, 1 - dist.get_rank())


def gathered(tensor: torch.Tensor) -> None:
    dist.all_gather_into_tensor(torch.zeros(8), tensor)


def check_without_memory() -> None:
    mesh = init_device_mesh("cpu", (2,))
    sharded = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    zeros = torch._efficientzerotensor((4,))
    with FakeTensorMode():
        fake = torch.ones(4)
    for tensor in (sharded, zeros, fake):
        for call in (dist.all_reduce, to_all, to_other, gathered):
            with pytest.raises(TypeError, match=rf"a {type(tensor).__name__} of shape \[4\] has no memory"):
                call(tensor)
    for call in (dist.all_reduce, to_all):
        with pytest.raises(TypeError, match=r"one of shape \[4\] is on meta. Call to_empty"):
            call(torch.ones(4, device="meta"))
    sparse = torch.eye(3).to_sparse_csr()
    parts = [torch.ones(2), torch.ones(3)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    for tensor, said in (
        (sparse, r"sparse_csr\. Use tensor\.to_dense"),
        (jagged, r"a nested tensor\. Use its values"),
        (torch.nested.nested_tensor(parts), r"a nested tensor\. Use its values"),
    ):
        for call in (dist.all_reduce, to_all):
            with pytest.raises(TypeError, match=said):
                call(tensor)
    with pytest.raises(TypeError, match="has no memory"):
        torch.vmap(dist.all_reduce)(torch.ones(2, 3))
    tensor = torch.ones(3)
    dist.all_reduce(tensor)  # nothing was sent
    assert (tensor == 2).all()


def test_only_memory_is_sent() -> None:
    run(check_without_memory)


def check_inference() -> None:
    with torch.inference_mode():
        tensor = transposed()
        future = dist.all_reduce(tensor, async_op=True).get_future()
    assert (future.wait()[0] == 3).all()
    # In inference mode, on what is not of it and wants a gradient.
    parameter = nn.Parameter(transposed())
    with torch.inference_mode():
        dist.all_reduce(parameter)
    assert (parameter == 3).all()


def test_inference_mode() -> None:
    run(check_inference)


def check_failed_copy() -> None:
    tensor = transposed()
    work: Any = dist.all_reduce(tensor, async_op=True)
    staging = work._staging
    (target, host), staging._copies = staging._copies[0], [(tensor, torch.empty(5, device="cpu"))]
    with pytest.raises(RuntimeError, match="size"):
        work.wait()
    staging._copies = [(target, host)]
    work.wait()
    assert (tensor == 3).all()


def test_a_copy_that_failed_is_made_again() -> None:
    run(check_failed_copy)


def check_overlapping() -> None:
    same = torch.ones(1, device="cpu").expand(8)
    size = dist.get_world_size()
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(same, async_op=True),
        "reduce_scatter": lambda: dist.reduce_scatter_single(same, torch.ones(8 * size)),
        "all_gather": lambda: dist.all_gather([same] * size, torch.ones(8)),
        "recv": lambda: dist.irecv(same, 1 - dist.get_rank()),
    }
    for name, call in calls.items():
        with pytest.raises(
            ValueError, match=rf"\[smdp\] rank .*: {name}: an output of shape \[8\] and strides \[0\] has"
        ):
            call()
    assert (same == 1).all()
    gathered = [torch.empty(8) for _ in range(size)]
    dist.all_gather(gathered, same)  # reading is fine
    assert (torch.stack(gathered) == 1).all()


def test_outputs_that_overlap_are_refused_before_anything_is_sent() -> None:
    run(check_overlapping)


def check_moved_gradient() -> None:
    ddp = smdp.torch.DistributedDataParallel(nn.Linear(3, 4))
    moved: Any = SimpleNamespace(grad=torch.ones(4, 3, device="meta"))
    with pytest.raises(
        RuntimeError, match=r"'weight' is on meta, but its parameter was on the CPU.*Move the model first"
    ):
        ddp.gradient_hooks("the test").hand_over(0, moved)


def test_a_model_that_was_moved_after_wrapping() -> None:
    run(check_moved_gradient, 1)
