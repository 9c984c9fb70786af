"""Large tensors that a step gives: other ranks fetch them when they read them, one by one, or never."""

from __future__ import annotations

import copy
import gc
import io
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pipeline_models import WIDTH, Chain, made, rows
from torch import Tensor
from torch_spawn import run

import smdp
import smdp.torch
from smdp.torch.pipelining.transfers.late_results import LateTensor

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
    reads = pipe.mesh.step_group("pp").pending_sends
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


def process_ids() -> list[int]:
    found = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    found[dist.get_rank()] = os.getpid()
    dist.all_reduce(found)
    return [int(each) for each in found]


def state_of(process: int) -> str:
    """Z: it has ended, X: it is gone, T: it has been stopped."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def test_one_rank_reads_and_the_owner_may_change_its_own() -> None:
    run(read_on_one_rank, 2)


def drop_unread() -> None:
    pipe = pipelined()
    sends = pipe.mesh.step_group("pp").pending_sends
    kept = []
    for number in range(3):
        _, given = pipe.eval_step(rows()[0], wide)
        if number == 1:
            kept = given_tensors(given)  # read after a later step
        del given
        gc.collect()
    dist.barrier()
    wait_until(lambda: len(sends._given) == (4 if pipe.layout.stage_rank == 1 else 0))
    dist.barrier()
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
    others = process_ids()
    if dist.get_rank() == 0:
        wait_until(lambda: state_of(others[1]) in "ZX")  # the owner has ended
        close(torch.cat(given_tensors(given)[:2]), expected(rows()[0])[:4])
        print("read at the end")


def test_the_owner_hands_over_at_its_end_what_may_still_be_read() -> None:
    assert "read at the end" in run(read_at_the_end, 2)[0]


def join() -> None:
    store = f"file://{os.environ['SMDP_TEST_STORE']}"
    dist.init_process_group("smdp", store, rank=int(os.environ["RANK"]), world_size=2)


def read_at_the_end_of_the_program() -> None:
    join()
    read_at_the_end()


def test_so_it_does_where_nobody_destroys_the_group() -> None:
    assert "read at the end" in run(read_at_the_end_of_the_program, 2, init=False)[0]


def owner_killed() -> None:
    _, given = pipelined().eval_step(rows()[0], wide)
    others = process_ids()
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    wait_until(lambda: state_of(others[1]) in "ZX")
    begin = time.monotonic()
    what = r"rank 1 .*while reading float32\[2, 200000\] of stage 1, microbatch 0, a result of step 0"
    for _ in range(2):
        with pytest.raises(smdp.SmdpError, match=what):
            print(given[0]["large"].sum())
    assert time.monotonic() - begin < 5


def test_a_dead_owner_is_named() -> None:
    run(owner_killed, 2, exits={1: -signal.SIGKILL})


def owner_fails_on_its_own() -> None:
    pipe = pipelined()
    _, given = pipe.eval_step(rows()[0], wide)
    dist.barrier()
    if dist.get_rank() == 1:
        try:
            raise OSError("the disk is full")
        finally:
            dist.destroy_process_group()
    begin = time.monotonic()
    with pytest.raises(smdp.SmdpError, match=r"rank 1 .* has left"):
        pipe.eval_step(rows()[0], wide)
    assert time.monotonic() - begin < 5
    assert given[0]["large"].shape == (2, COLUMNS)


def test_unread_results_delay_no_error() -> None:
    run(owner_fails_on_its_own, 2, exits={1: 1})


def read_after_leaving() -> None:
    join()
    _, given = pipelined().eval_step(rows()[0], wide)
    dist.destroy_process_group()
    if isinstance(given[0]["large"], LateTensor):
        with pytest.raises(
            smdp.ClosedError, match=r"was shut down.* while reading float32\[2, 200000\] of stage 1"
        ):
            given[0]["large"].sum()


def test_reading_after_the_end_is_an_error() -> None:
    run(read_after_leaving, 2, init=False)


def interrupted() -> None:
    _, given = pipelined().eval_step(rows()[0], wide)
    others = process_ids()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        wait_until(lambda: state_of(others[1]) == "T")
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            given[0]["large"].sum()
        mine = torch.zeros(8, 2, COLUMNS)
        os.kill(others[1], signal.SIGCONT)
        close(given[0]["large"], expected(rows()[0])[:2])
        assert not mine.any()  # nothing has been written to memory that was given up
    dist.barrier()


def test_an_interrupted_read_can_be_made_again() -> None:
    run(interrupted, 2)


def other_numbers_of_microbatches() -> None:
    pipe = pipelined()

    def program(factor: float) -> Tensor:
        output = pipe(rows()[0]["x"])
        pipe.backward(output.square().mean())
        return output.detach().sum(-1, keepdim=True) * torch.full((COLUMNS,), factor)

    kept = []
    for factors in ([1.0, 2.0], [3.0], [4.0, 5.0, 6.0]):
        kept += pipe.run_step(
            lambda factor: program(factor.item()), [torch.tensor(f) for f in factors], is_training=True
        )
        pipe.steps = 0  # as a checkpoint sets it
    if pipe.layout.stage_rank == 0:
        first = made(Chain)(rows()[0]["x"]).detach().sum(-1, keepdim=True)
        for number, result in reversed(list(enumerate(kept, 1))):
            close(result, (first * number).expand(-1, COLUMNS))
    dist.barrier()


def test_results_of_steps_of_any_size_are_told_apart() -> None:
    run(other_numbers_of_microbatches, 2)


def in_a_later_step() -> None:
    pipe = pipelined()
    batch = rows()[0]
    _, given = pipe.eval_step(batch, wide)
    earlier = given_tensors(given)[0]

    def distance(output: Tensor, part: dict[str, Tensor]) -> Tensor:
        return (output.sum(-1, keepdim=True) - earlier).square().mean()

    found = pipe.eval_step(batch, distance)
    output = made(Chain)(batch["x"]).detach()
    losses = [(part.sum(-1, keepdim=True) - expected(batch)[:2]).square().mean() for part in output.chunk(4)]
    torch.testing.assert_close(found, torch.stack(losses).mean(), rtol=1e-4, atol=0)
    _, given = pipe.eval_step(batch, wide)
    detached = given[1]["large"].detach()
    assert given[1]["large"].detach().requires_grad_().requires_grad
    with torch.inference_mode():
        assert given[2]["large"].isfinite().all()
    weight = torch.ones(1, requires_grad=True)
    (given[2]["large"] * weight).sum().backward()
    narrow = expected(batch)[6:, :WIDTH].contiguous()
    _, given_narrow = pipe.eval_step(batch, wide)
    late = given_narrow[3]["large"]
    for function in (lambda _: pipe(late[:, :WIDTH]), lambda part: pipe(part[:, :WIDTH])):
        (found,) = pipe.run_step(function, [late], is_training=False)
        torch.testing.assert_close(found, made(Chain)(narrow), rtol=1e-3, atol=1e-3)
    cycle: list[Any] = [given[3]["large"]]
    cycle.append(cycle)
    close(copy.deepcopy(cycle)[0], expected(batch)[6:])
    if pipe.layout.stage_rank == 0:
        assert (
            isinstance(detached, LateTensor) and detached._contents is None
        )  # nothing has been read for that
        assert not given[1]["large"].requires_grad
    child = os.fork()
    if child == 0:
        sys.exit(0)  # of a copy of this process, which has nothing to hand over
    begin = time.monotonic()
    assert os.waitpid(child, 0)[1] == 0 and time.monotonic() - begin < 10
    dist.barrier()


def test_results_in_later_steps_and_where_tensors_go() -> None:
    run(in_a_later_step, 2)


def returned_on_one_rank() -> None:
    def loss_fn(output: Tensor, part: dict[str, Tensor]) -> tuple[Tensor, Any]:
        loss, found = wide(output, part)
        return loss, found["large"] if dist.get_rank() == 0 else None

    what = r"different programs.* a result, float32\[2, 200000\] of stage 1"
    with pytest.raises(RuntimeError, match=what):
        pipelined().eval_step(rows()[0], loss_fn)


def test_a_result_that_only_one_rank_returns_is_refused() -> None:
    run(returned_on_one_rank, 2)
