"""Large tensors that a step gives: other ranks fetch them when they read them, one by one, or never."""

from __future__ import annotations

import copy
import gc
import io
import os
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pipeline_models import Chain, made, rows
from torch import Tensor
from torch_spawn import run

import smdp
import smdp.torch
from smdp.torch.model_parallel.late_results import LateTensor

COLUMNS = 200_000  # two rows are more than a megabyte


def wide(output: Tensor, part: dict[str, Tensor]) -> tuple[Tensor, dict[str, Any]]:
    large = output.sum(-1, keepdim=True) * torch.arange(1.0, COLUMNS + 1)
    return output.square().mean(), {"large": large, "again": large, "small": output.detach()}


def expected(batch: dict[str, Tensor]) -> Tensor:
    output = made(Chain)(batch["x"]).detach()
    return output.sum(-1, keepdim=True) * torch.arange(1.0, COLUMNS + 1)


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def pipelined() -> Any:
    return smdp.torch.pipeline(made(Chain), stages=2, microbatches=4, example_inputs=rows()[0])


def given_tensors(given: list[dict[str, Any]]) -> list[Tensor]:
    return [each["large"] for each in given]


def read_on_one_rank() -> None:
    pipe = pipelined()
    reads = pipe.layout.reads.offers
    owner = pipe.layout.stage_rank == 1
    for step in (pipe.train_step, pipe.eval_step, pipe.train_step):
        for batch in rows():
            _, given = step(batch, wide)
            found = given_tensors(given)
            # Shape and dtype are known without a message.
            assert [tensor.shape for tensor in found] == [(2, COLUMNS)] * 4
            assert {tensor.dtype for tensor in found} == {torch.float32}
            assert len(found[0]) == 2 and found[0].numel() == 2 * COLUMNS and not found[0].requires_grad
            assert given[0]["again"] is found[0] or owner
            assert len(reads._given) == (4 if owner else 0)
            # The other one may do with its own tensors what it likes.
            if owner:
                for tensor in found:
                    tensor.zero_()
            dist.barrier()
            if not owner:
                close(torch.cat(found), expected(batch))
                assert found[0].tolist() == found[0].clone().tolist()
                assert found[0].numpy().base is not None
                assert found[0].mul_(0).abs().sum() == 0 and not found[0].any()
            dist.barrier()
            wait_until(lambda: not reads._given)
        pipe.zero_grad()


def wait_until(is_so: Any) -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_one_rank_reads_and_the_owner_may_change_its_own() -> None:
    run(read_on_one_rank, 2)


def drop_unread() -> None:
    pipe = pipelined()
    offers = pipe.layout.reads.offers
    kept = []
    for number in range(3):
        _, given = pipe.eval_step(rows()[0], wide)
        if number == 1:
            kept = given_tensors(given)  # read after a later step
        del given
        gc.collect()
    dist.barrier()
    wait_until(lambda: len(offers._given) == (4 if pipe.layout.stage_rank == 1 else 0))
    if pipe.layout.stage_rank == 0:
        file = io.BytesIO()
        torch.save({"large": kept[1]}, file)
        file.seek(0)
        close(torch.load(file)["large"], expected(rows()[0])[2:4])
        twin = copy.deepcopy(kept[2])
        close(twin, expected(rows()[0])[4:6])
        assert "tensor([[" in repr(kept[3])
        assert str(torch.stack(kept).mean().item()) == str(torch.stack(list(kept)).mean().item())
    dist.barrier()


def test_what_is_dropped_is_never_sent_and_what_is_kept_can_be_read_later() -> None:
    run(drop_unread, 2)


def read_at_the_end() -> None:
    _, given = pipelined().eval_step(rows()[0], wide)
    if dist.get_rank() == 0:
        time.sleep(1)  # the owner is at its end
        close(torch.cat(given_tensors(given)[:2]), expected(rows()[0])[:4])
        print("read at the end")
    # Two are never read; the owner need not wait for them longer than for this rank's end.


def test_the_owner_waits_at_its_end_for_who_still_reads() -> None:
    begin = time.monotonic()
    assert "read at the end" in run(read_at_the_end, 2)[0]
    assert time.monotonic() - begin < 60


def join() -> None:
    store = f"file://{os.environ['SMDP_TEST_STORE']}"
    dist.init_process_group("smdp", store, rank=int(os.environ["RANK"]), world_size=2)


def read_at_the_end_of_the_program() -> None:
    join()
    read_at_the_end()


def test_so_it_does_where_nobody_destroys_the_group() -> None:
    begin = time.monotonic()
    assert "read at the end" in run(read_at_the_end_of_the_program, 2, init=False)[0]
    assert time.monotonic() - begin < 60


def owner_killed() -> None:
    _, given = pipelined().eval_step(rows()[0], wide)
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(
        smdp.SmdpError, match=r"rank 1 .*While reading float32\[2, 200000\] of stage 1, microbatch 0"
    ):
        print(given[0]["large"].sum())
    assert time.monotonic() - begin < 5
    with pytest.raises(RuntimeError, match=r"can no longer be read: .* an earlier read failed"):
        print(given[0]["large"])


def test_a_dead_owner_is_named() -> None:
    run(owner_killed, 2, exits={1: -signal.SIGKILL})


def read_too_late() -> None:
    join()
    _, given = pipelined().eval_step(rows()[0], wide)
    dist.destroy_process_group()
    if not isinstance(given[0]["large"], LateTensor):
        return  # it lies here
    with pytest.raises(RuntimeError, match=r"lies on rank 1 can no longer be read: this rank has left"):
        given[0]["large"].sum()


def test_reading_after_the_end_is_an_error() -> None:
    run(read_too_late, 2, init=False)
