"""Object collectives, sub-groups and point-to-point messages."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch_spawn import run


def check_objects() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    mine = {"rank": rank, "payload": "x" * (10 ** (rank + 1))}
    gathered: list[object] = [None] * size
    dist.all_gather_object(gathered, mine)
    assert [item["rank"] for item in gathered] == list(range(size))  # type: ignore[index]
    at_root: list[object] | None = [None] * size if rank == 1 else None
    dist.gather_object(mine, at_root, dst=1)
    assert at_root is None or at_root[rank] == mine
    objects: list[object] = ["a", {"b": 2}, [3] * 1000] if rank == 0 else [None] * 3
    dist.broadcast_object_list(objects, src=0)
    assert objects == ["a", {"b": 2}, [3] * 1000]
    received: list[object] = [None]
    dist.scatter_object_list(
        received, [f"for {other}" for other in range(size)] if rank == 0 else None, src=0
    )
    assert received == [f"for {rank}"]
    if rank == 0:
        dist.send_object_list(["hello", 1], dst=1)
    elif rank == 1:
        pair: list[object] = [None, None]
        assert dist.recv_object_list(pair, src=0) == 0
        assert pair == ["hello", 1]


def check_subgroups() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    assert isinstance(dist.group.WORLD.group_name, str)
    assert dist.get_backend() == "smdp"
    evens = dist.new_group(range(0, size, 2))
    odds = dist.new_group(range(1, size, 2), timeout=timedelta(seconds=30))
    mine, other = (odds, evens) if rank % 2 else (evens, odds)
    members = dist.get_process_group_ranks(mine)
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=mine)
    assert tensor.item() == sum(members)
    assert other is dist.GroupMember.NON_GROUP_MEMBER
    tensor = torch.tensor([float(rank)])
    dist.broadcast(tensor, src=members[-1], group=mine)
    assert tensor.item() == members[-1]
    # Two groups with operations in flight at once, and gloo beside them.
    gloo = dist.new_group(backend="gloo")
    again = dist.new_group()
    first, second, third = torch.ones(100_000), torch.ones(3), torch.ones(7)
    works = [
        dist.all_reduce(first, async_op=True),
        dist.all_reduce(second, group=again, async_op=True),
        dist.all_reduce(third, group=gloo, async_op=True),
    ]
    for work in reversed(works):
        work.wait()
    assert {first[0].item(), second[0].item(), third[0].item()} == {float(size)}
    dist.destroy_process_group(again)
    current, _groups = dist.new_subgroups(2)
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=current)
    assert tensor.item() == 2
    mesh = dist.init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("outer", "inner"))
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=mesh.get_group("inner"))
    assert tensor.item() == size // 2
    # Last: from 2.15 on torch would name later groups differently on these two ranks and on the others.
    pair = dist.new_group([0, size - 1], use_local_synchronization=True) if rank in (0, size - 1) else None
    if pair is not None:
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=pair)
        assert tensor.item() == 2
    dist.barrier()


def check_point_to_point() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    after, before = (rank + 1) % size, (rank - 1) % size
    # Both directions at once, of several dtypes and layouts, empty ones too.
    kinds = [
        (torch.float32, (5,)),
        (torch.bool, (3,)),
        (torch.float8_e5m2, (2, 2)),
        (torch.int64, (0,)),
    ]
    for dtype, shape in kinds:
        message = torch.full(shape, rank % 2).to(dtype)
        landing = torch.zeros(*shape, 2).to(dtype)[..., 0]
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, message, after), dist.P2POp(dist.irecv, landing, before)]
        )
        for work in works:
            work.wait()
        assert torch.equal(landing.float(), torch.full(shape, float(before % 2)))
    # Tags pick among messages; order of receiving is free.
    sent = [dist.isend(torch.tensor([rank, tag]), after, tag=tag) for tag in (7, 8, 9)]
    for tag in (9, 7, 8):
        landing = torch.zeros(2, dtype=torch.int64)
        work = dist.irecv(landing, before, tag=tag)
        assert work is not None
        assert work.wait()
        assert landing.tolist() == [before, tag]
    for work in sent:
        assert work is not None
        work.wait()
    # A large message, synchronously.
    if rank == 0:
        dist.send(torch.arange(1_000_000), 1)
    elif rank == 1:
        large = torch.zeros(1_000_000, dtype=torch.int64)
        assert dist.recv(large, 0) == 0
        assert torch.equal(large, torch.arange(1_000_000))
    # From anyone.
    if rank == 0:
        landing = torch.zeros(1, dtype=torch.int64)
        senders = []
        for _ in range(size - 1):
            sender = dist.recv(landing, tag=3)
            assert landing.item() == sender
            senders.append(sender)
        assert sorted(senders) == list(range(1, size))
    else:
        dist.send(torch.tensor([rank]), 0, tag=3)
    dist.barrier()


def groups() -> None:
    check_objects()
    check_subgroups()
    check_point_to_point()


def init_again() -> None:
    """Destroy and make the world anew on one store, as trainers do that recover."""
    import os

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.environ["SMDP_TEST_STORE"], size)
    for round_ in range(3):
        dist.init_process_group("smdp" if round_ else "cpu:smdp", store=store, rank=rank, world_size=size)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == size
        if round_ < 2:
            dist.barrier()
            dist.destroy_process_group()
            with pytest.raises(ValueError, match="initialized"):
                dist.all_reduce(tensor)
    # Left without destroying: the interpreter must end all the same.


def test_groups() -> None:
    run(groups, 4)


def test_groups_are_made_again_and_may_be_left_undestroyed() -> None:
    run(init_again, 2, init=False)
