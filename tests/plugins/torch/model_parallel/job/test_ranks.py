"""Ranks and groups as SageMaker Model Parallel counts them, on 8 ranks without processes and on real ones."""

from __future__ import annotations

import json
import multiprocessing
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_spawn import run

from smdp.placement import Placement
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.model_parallel.job import ranks as smp
from smdp.torch.model_parallel.job.configuration import Configuration
from smdp.torch.model_parallel.job.groups import CommGroup, RankType
from smdp.torch.model_parallel.job.initialization import init, is_initialized, shutdown
from smdp.torch.model_parallel.job.state import Job, state

# rdp, pp, tp, dp, mp of ranks 0 to 7 of 2 x 2 x 2. The first two are published.
TABLES = {
    "DPT": ["00000", "00111", "01002", "01113", "10020", "10131", "11022", "11133"],
    "PTD": ["00000", "10010", "00121", "10131", "01002", "11012", "01123", "11133"],
    "DTP": ["00000", "01001", "00112", "01113", "10020", "11021", "10132", "11133"],
}


def places(monkeypatch: pytest.MonkeyPatch, placement: Placement, *names: str) -> list[list[Any]]:
    """Give what functions return on each rank."""
    found = []
    for rank in range(placement.size):
        mesh = ParallelMesh(placement.pipeline, placement.tensor, placement.data, placement.strategy, rank)
        job = Job(Configuration(ddp=True), mesh, 0, 1, False)
        monkeypatch.setattr(state, "job", job)
        assert (smp.rank(), smp.size()) == (rank, placement.size)
        found.append([getattr(smp, name)() for name in names])
    return found


@pytest.mark.parametrize(("strategy", "same"), [("DPT", "cluster"), ("PTD", "PTD"), ("DTP", "DTP")])
def test_published_tables(monkeypatch: pytest.MonkeyPatch, strategy: str, same: str) -> None:
    for name in (strategy, same):
        placement = Placement(2, 2, 2, name)
        found = places(monkeypatch, placement, "rdp_rank", "pp_rank", "tp_rank", "dp_rank", "mp_rank")
        assert ["".join(map(str, row)) for row in found] == TABLES[strategy]


def test_groups_of_spread_and_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    spread = places(monkeypatch, Placement(2, 1, 4, "spread"), "get_mp_group", "get_dp_group")
    assert spread[0] == [[0, 4], [0, 1, 2, 3]] and spread[6] == [[2, 6], [4, 5, 6, 7]]
    cluster = places(monkeypatch, Placement(2, 1, 4), "get_mp_group", "get_dp_group")
    assert cluster[0] == [[0, 1], [0, 2, 4, 6]] and cluster[7] == [[6, 7], [1, 3, 5, 7]]


def test_identities_hold_for_every_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("mp_size", "rdp_size", "pp_size", "dp_size", "tp_size")
    groups = ("get_tp_group", "get_dp_group", "get_mp_group", "get_pp_group", "get_rdp_group")
    for letters in ("DPT", "DTP", "PDT", "PTD", "TDP", "TPD"):
        placement = Placement(2, 2, 2, letters)
        for mp, rdp, pp, dp, tp in places(monkeypatch, placement, *names):
            assert mp * rdp == pp * dp == pp * tp * rdp == 8
        for found in places(monkeypatch, placement, *groups):
            tp_group, dp_group, mp_group, pp_group, rdp_group = map(set, found)
            assert tp_group == dp_group & mp_group and pp_group < mp_group and rdp_group < dp_group


def test_nothing_is_known_before_init() -> None:
    assert not is_initialized()
    shutdown()
    calls = (smp.rank, smp.mp_rank, smp.get_dp_group, smp.get_world_process_group, lambda: state.cfg)
    for call in calls:
        with pytest.raises(ValueError, match=r"\[smdp\] smp.init\(\) has not been called"):
            call()


def check_four_ranks() -> None:
    rank = int(os.environ["RANK"])
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match=r"partitions = 3 does not divide the 4 rank\(s\).*one of: 1, 2, 4"):
        init({"partitions": 3})
    os.environ["SM_HP_MP_PARAMETERS"] = json.dumps({"partitions": 2, "microbatches": 4})
    with pytest.raises(ValueError, match=r'4 ranks and partitions = 2.*2 replicas.*set "ddp" to true'):
        init()
    assert not dist.is_initialized() and not is_initialized()
    init({"ddp": True, "placement_strategy": "spread", "partitions": 4})
    assert is_initialized() and dist.get_backend() == "smdp"
    assert (state.cfg.partitions, state.cfg.microbatches, state.cfg.placement_strategy) == (2, 4, "spread")
    init()
    init({"ddp": True, "placement_strategy": "spread"})
    with pytest.raises(ValueError, match="placement_strategy = 'spread' and 'cluster'"):
        init({"ddp": True})
    assert (smp.rank(), smp.size(), smp.local_rank(), smp.local_size()) == (rank, 4, rank, 4)
    assert (smp.pp_rank(), smp.dp_rank(), smp.tp_rank()) == (rank // 2, rank % 2, 0)
    assert (smp.mp_rank(), smp.rdp_rank()) == (smp.pp_rank(), smp.dp_rank())
    for name in ("mp", "dp", "pp", "tp", "rdp"):
        ranks, group = getattr(smp, f"get_{name}_group")(), getattr(smp, f"get_{name}_process_group")()
        assert dist.get_process_group_ranks(group) == ranks
        assert dist.get_rank(group) == getattr(smp, f"{name}_rank")()
        total = torch.tensor(float(rank))
        dist.all_reduce(total, group=group)
        assert total == sum(ranks)
    assert smp.get_world_process_group() is dist.group.WORLD
    shutdown()
    shutdown()
    assert not dist.is_initialized() and not is_initialized()


def check_ranks_disagree() -> None:
    with pytest.raises(ValueError, match=r"a different configuration from rank .: microbatches = \d and \d;"):
        init({"partitions": 2, "microbatches": 1 + dist.get_rank()})
    assert dist.is_initialized() and not is_initialized()
    with pytest.raises(ValueError, match="dualpipe_v"):
        init({"partitions": 2, "schedule": "dualpipe_v"})
    init({"partitions": 2, "placement_strategy": "TDP", "prescaled_batch": True})
    assert smp.get_mp_group() == [0, 1] and smp.rdp_size() == smp.dp_size() == 1
    if dist.get_rank() == 0:
        # A worker that imports transformers calls this as well, with all variables of the rank.
        worker = multiprocessing.get_context("spawn").Process(target=init)
        worker.start()
        worker.join(60)
        assert worker.exitcode == 0
    shutdown()
    assert dist.is_initialized()


def test_init_by_the_launchers_variables() -> None:
    from spawn import free_port

    run(
        check_four_ranks,
        4,
        init=False,
        env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "LOCAL_WORLD_SIZE": "4"},
    )


def test_init_on_a_group_that_is_there() -> None:
    run(check_ranks_disagree, 2)


def test_one_process_without_a_launcher() -> None:
    with pytest.raises(ValueError, match=r"partitions = 2 does not divide the 1 rank\(s\)"):
        init({"partitions": 2})
    init({"microbatches": 2})
    try:
        assert (smp.rank(), smp.size(), smp.mp_size(), smp.local_rank()) == (0, 1, 1, 0)
        assert dist.get_world_size(smp.get_dp_process_group()) == 1
    finally:
        shutdown()
    assert not dist.is_initialized()


def test_names_of_groups_and_ranks() -> None:
    kinds = ["WORLD", "MP", "DP", "PP", "TP", "RDP"]
    assert [group.name for group in CommGroup] == ["WORLD", *(f"{kind}_GROUP" for kind in kinds[1:])]
    assert [kind.name for kind in RankType] == [f"{kind}_RANK" for kind in kinds]
