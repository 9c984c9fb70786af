"""Objects between ranks, as SageMaker Model Parallel's calls send them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

import pytest
import torch
import torch.distributed as dist
from torch_spawn import run

import smdp
from smdp.torch.model_parallel.checkpoints.checkpoints import resume_from_checkpoint
from smdp.torch.model_parallel.job import communication as smp
from smdp.torch.model_parallel.job.groups import CommGroup, RankType
from smdp.torch.model_parallel.job.initialization import init
from smdp.torch.model_parallel.job.ranks import dp_rank, get_mp_group, mp_rank, pp_rank, rank


def check_objects() -> None:
    init({"partitions": 2, "ddp": True})  # mp groups [0, 1] [2, 3], dp groups [0, 2] [1, 3]
    me = rank()
    assert smp.allgather({"rank": me}, CommGroup.WORLD) == [{"rank": other} for other in range(4)]
    assert smp.allgather(me, CommGroup.MP_GROUP) == get_mp_group()
    assert smp.allgather("alone", CommGroup.TP_GROUP) == ["alone"]
    found = smp.allgather(torch.full((dp_rank() + 1, 2), float(me)), CommGroup.DP_GROUP)
    assert [tuple(tensor.shape) for tensor in found] == [(1, 2), (2, 2)]
    assert [tensor[0, 0].item() for tensor in found] == [pp_rank(), pp_rank() + 2]
    for group in CommGroup:
        smp.barrier(group)
    smp.dp_barrier()
    smp.mp_barrier()

    # Only the sender of a broadcast calls it, and two messages in flight keep their order.
    mixed = OrderedDict(weights=torch.arange(6.0)[::2], note="x" * 300_000, scores=[None, (1, 2.5)])
    if mp_rank() == 0:
        smp.send("first", 1, RankType.MP_RANK)
        smp.broadcast(mixed, CommGroup.MP_GROUP)
        smp.send(torch.ones(()), 1, RankType.PP_RANK)
    else:
        assert smp.recv_from(0, RankType.MP_RANK) == "first"
        received = smp.recv_from(0, RankType.PP_RANK)
        assert isinstance(received, OrderedDict) and received["weights"].tolist() == [0, 2, 4]
        assert (received["note"], received["scores"]) == (mixed["note"], mixed["scores"])
        assert smp.recv_from(0, RankType.MP_RANK).item() == 1
    if me == 0:
        start = time.monotonic()
        smp.broadcast("late", CommGroup.WORLD)
        assert time.monotonic() - start > 0.4  # it returns when all have it
    else:
        time.sleep(0.5 if me == 3 else 0.0)
        assert smp.recv_from(0, RankType.WORLD_RANK) == "late"
    # Two ranks that send before they receive, and a view of a large tensor.
    other = me ^ 1
    smp.send(torch.zeros(100, 100_000)[me, :5] + me, other, RankType.WORLD_RANK)
    assert smp.recv_from(other, RankType.WORLD_RANK).tolist() == [other] * 5


def check_bad_input() -> None:
    me = rank()
    with pytest.raises(ValueError, match=r"src_rank = 2 is not a PP_RANK; allowed: 0 to 1"):
        smp.recv_from(2, RankType.PP_RANK)
    with pytest.raises(ValueError, match=r"dest_rank = True is not a WORLD_RANK"):
        smp.send("x", True, RankType.WORLD_RANK)
    with pytest.raises(ValueError, match="is this rank itself; pass another rank"):
        smp.recv_from(me, RankType.WORLD_RANK)
    with pytest.raises(ValueError, match=r"rank_type = <CommGroup.*allowed: smp.WORLD_RANK, smp.MP_RANK"):
        smp.send("x", 0, CommGroup.WORLD)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"is not valid; allowed: smp.WORLD, smp.MP_GROUP"):
        smp.barrier("dp")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"smp.send\(\) got <.*, of type lock, which cannot be pickled"):
        smp.send(threading.Lock(), me ^ 1, RankType.WORLD_RANK)
    with pytest.raises(
        ValueError, match=r"smp.allgather\(\) got .*, of type lock, which cannot be pickled"
    ) as found:
        smp.allgather(threading.Lock() if me == 2 else me, CommGroup.WORLD)
    assert str(found.value).startswith("[smdp] smp" if me == 2 else "[smdp] rank 2: smp")
    assert smp.allgather(me, CommGroup.WORLD) == [0, 1, 2, 3]


def check_death() -> None:
    dist.barrier()
    if rank() == 3:
        import os

        os._exit(7)
    start = time.monotonic()
    with pytest.raises(smdp.SmdpError, match="rank 3"):
        smp.recv_from(3, RankType.WORLD_RANK)
    with pytest.raises(smdp.SmdpError, match="rank 3"):
        smp.broadcast("x", CommGroup.WORLD)
    with pytest.raises(smdp.SmdpError, match="rank 3"):
        resume_from_checkpoint(".", "never")
    assert time.monotonic() - start < 10


def check_all() -> None:
    check_objects()
    check_bad_input()
    check_death()


def test_objects_between_four_ranks() -> None:
    run(check_all, 4, exits={3: 7})


def test_calls_before_init_are_refused() -> None:
    for call in (
        smp.barrier,
        lambda: smp.allgather(1, CommGroup.WORLD),
        lambda: smp.recv_from(0, RankType.MP_RANK),
    ):
        with pytest.raises(ValueError, match=r"smp.init\(\) has not been called"):
            call()
