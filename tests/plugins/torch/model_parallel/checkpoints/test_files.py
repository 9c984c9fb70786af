"""smp.save and smp.load: names of files, whole files only; ranks that do not come to a common call."""

from __future__ import annotations

import io
import logging
import os
import pickle
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch_spawn import run

import smdp
from smdp.torch.model_parallel.checkpoints.checkpoint_files import load, save
from smdp.torch.model_parallel.job import collective_calls as meeting
from smdp.torch.model_parallel.job.communication import allgather, barrier
from smdp.torch.model_parallel.job.groups import CommGroup
from smdp.torch.model_parallel.job.initialization import init, shutdown
from smdp.torch.model_parallel.job.ranks import mp_rank, rank


def check_files() -> None:
    init({"partitions": 2})
    folder = Path(os.environ["SMDP_TEST_FOLDER"], "files")
    folder.mkdir(exist_ok=True)
    save({"part": rank()}, folder / "optimizer.pt")
    barrier()
    assert sorted(path.name for path in folder.iterdir()) == ["optimizer.pt_0", "optimizer.pt_1"]
    assert load(folder / "optimizer.pt", partial=True) == {"part": rank()}
    assert load(str(folder / "optimizer.pt_0"), partial=False, map_location="cpu") == {"part": 0}
    assert load(folder / "optimizer.pt", back_compat=True, pickle_load_args={"weights_only": True})
    barrier()
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        save(lambda: 0, folder / "optimizer.pt")  # what was there stays
    assert load(folder / "optimizer.pt") == {"part": rank()}
    save(torch.ones(3), folder / "whole.pt", partial=False)
    barrier()
    assert load(folder / "whole.pt", partial=False).sum() == 3
    buffer = io.BytesIO()
    save([1], buffer, False)
    buffer.seek(0)
    assert load(buffer, None, pickle, None, False) == [1]

    save({"part": rank()}, folder / "v3.pt", v3=True)
    assert (folder / f"v3.pt_{rank()}_0_0").is_file()
    assert load(folder / "v3.pt") == {"part": rank()}
    with pytest.raises(ValueError, match="needs a path"):
        save({}, io.BytesIO())
    with pytest.raises(FileNotFoundError, match=r"\[smdp\] .*there is no folder"):
        save({}, folder / "none" / "optimizer.pt")
    with pytest.raises(FileNotFoundError, match=r"\[smdp\] there is no file .*other.pt_"):
        load(folder / "other.pt")
    barrier()
    (folder / "optimizer.pt_2").touch()
    with pytest.raises(
        ValueError, match=r"contains optimizer.pt_0, optimizer.pt_1, optimizer.pt_2.*partitions = 2"
    ):
        load(folder / "optimizer.pt")
    (folder / "slices.pt_0_0").touch()
    with pytest.raises(ValueError, match=r"contains slices.pt_0_0.* this rank needs 'slices.pt_[01]'"):
        load(folder / "slices.pt")
    (folder / "few[0].pt_0").write_bytes((folder / "optimizer.pt_0").read_bytes())
    barrier()
    if mp_rank() == 1:
        with pytest.raises(ValueError, match=r"this rank needs 'few\[0\].pt_1'"):
            load(folder / "few[0].pt")


def check_meetings() -> None:
    for number in range(20):  # nobody looks at what another one is ahead
        meeting.enter(f"step {number}")
    time.sleep(0.2 * rank())
    meeting.meet("state_dict()")
    assert allgather(rank(), CommGroup.MP_GROUP) == [0, 1]
    start = time.monotonic()
    if rank() == 0:
        meeting._PATIENCE_S = 0.3
        records: list[logging.LogRecord] = []
        handler = logging.Handler()
        handler.emit = records.append  # type: ignore[method-assign]
        meeting._log.addHandler(handler)
        with pytest.raises(
            smdp.MismatchError, match=r"rank 0 is in full\(\), but rank 1 has gone on to smp.step; all ranks"
        ):
            meeting.meet("full()")
        assert "rank 0 waits in full() for rank(s) [1]; all ranks" in records[0].getMessage()
        meeting.enter("smp.step")
    else:
        time.sleep(1)
        meeting.enter("smp.step")
    os.environ["SMDP_TIMEOUT"] = "2"
    if rank() == 0:
        with pytest.raises(smdp.TimeoutError, match=r"waited 2 s in late\(\) for rank\(s\) \[1\]"):
            meeting.meet("late()")
        with pytest.raises(smdp.MismatchError, match="rank 1 has gone on to the end of the program"):
            meeting.meet("later()")
        assert time.monotonic() - start < 10
    else:
        time.sleep(2.5)
    # Rank 1 ends without coming.


def check_next_job() -> None:
    """The calls of a job are not those of the next one in the same processes."""
    own = dist.get_rank()
    store = dist.FileStore(os.environ["SMDP_TEST_STORE"] + "-of-jobs", 2)  # like that of a launcher
    dist.destroy_process_group()
    dist.init_process_group("smdp", store=store, rank=own, world_size=2)
    init({"partitions": 2})
    meeting.meet("state_dict()")
    barrier()
    shutdown()
    dist.destroy_process_group()
    dist.init_process_group("smdp", store=store, rank=own, world_size=2)
    init({"partitions": 2})
    time.sleep(0.2 * rank())  # rank 0 then looks while the store has only the first job's call of rank 1
    meeting.meet("smp.step")


def check_all() -> None:
    check_next_job()
    check_files()
    check_meetings()


def test_files_and_meetings_of_two_ranks() -> None:
    run(check_all, 2)


def test_calls_before_init_are_refused() -> None:
    for call in (lambda: load("x.pt"), lambda: save({}, "x.pt"), lambda: meeting.enter("x")):
        with pytest.raises(ValueError, match=r"smp.init\(\) has not been called"):
            call()
