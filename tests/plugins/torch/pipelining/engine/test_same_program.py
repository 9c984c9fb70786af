"""Ranks that run different programs are told so, and which operation differs; nobody waits for ever."""

from __future__ import annotations

from torch_spawn import run


def differs() -> None:
    import time

    import pytest
    import torch.distributed as dist
    from pipeline_models import Language, batches, language_loss, made
    from torch import Tensor

    import smdp.torch

    rank = dist.get_rank()

    def reads_on_first(output: dict[str, Tensor], microbatch: dict[str, Tensor]) -> Tensor:
        loss = language_loss(output, microbatch)
        if rank == 0:
            loss.item()
        return loss

    def reads_on_last(output: dict[str, Tensor], microbatch: dict[str, Tensor]) -> Tensor:
        loss = language_loss(output, microbatch)
        if rank == 1:
            loss.item()
        return loss

    def doubles_on_first(output: dict[str, Tensor], microbatch: dict[str, Tensor]) -> Tensor:
        loss = language_loss(output, microbatch)
        return 2 * loss if rank == 0 else loss

    for loss_fn, text in (
        (reads_on_first, r"this rank's program uses float32\[\] of stage 1"),
        (reads_on_last, r"run different programs: .*item \(read\)"),
        (doubles_on_first, r"run different programs: .*mul \(glue\) on stage 1"),
    ):
        pipe = smdp.torch.pipeline(made(Language), stages=2)
        start = time.monotonic()
        with pytest.raises(RuntimeError, match=text):
            pipe.train_step(batches(1)[0], loss_fn)
        assert time.monotonic() - start < 5
    pipe = smdp.torch.pipeline(made(Language), stages=2)
    for parameter in pipe.parameters():
        parameter.requires_grad_(rank == 1)  # which rank 1 does not know of rank 0's
    with pytest.raises(RuntimeError, match=r"run different programs: .* with a gradient"):
        pipe.train_step(batches(1)[0], language_loss)

    pipe = smdp.torch.pipeline(made(Language), stages=2)
    for length in (12, 7, 12):
        pipe.train_step(batches(1, length=length)[0], language_loss)


def reads_later() -> None:
    import contextlib
    import time

    import pytest
    import torch.distributed as dist
    from pipeline_models import Language, batches, language_loss, made
    from torch import Tensor

    import smdp
    import smdp.torch
    from smdp.torch.pipelining.engine import host_reads

    host_reads._LONGEST_DETOUR = 1.0
    rank = dist.get_rank()
    steps = [0]
    read = []

    def loss_fn(output: dict[str, Tensor], microbatch: dict[str, Tensor]) -> Tensor:
        loss = language_loss(output, microbatch)
        if steps[0] in (1, 3) or (steps[0], rank) in ((2, 1), (4, 0)):
            read.append(loss.item())
        return loss

    pipe = smdp.torch.pipeline(made(Language), stages=2)
    found = []
    for batch in batches(4):
        read.clear()
        pipe.train_step(batch, loss_fn)
        found.append(list(read))
        steps[0] += 1
    assert [len(losses) for losses in found] == [0, 8, 8 if rank == 1 else 0, 8]
    everyone: list[list[float]] = [[], []]
    dist.all_gather_object(everyone, found[3])
    assert everyone[0] == everyone[1]  # not what rank 1 read alone a step before
    if rank == 0:
        with pytest.raises(RuntimeError, match="reads a value on this rank's host that it did not read"):
            pipe.train_step(batches(1)[0], loss_fn)
    else:
        with contextlib.suppress(smdp.SmdpError):  # that rank 0 has given up
            pipe.train_step(batches(1)[0], loss_fn)
        time.sleep(3)


def test_reads_that_come_later_are_right_or_refused() -> None:
    run(reads_later)


def test_a_branch_on_the_rank_is_found() -> None:
    run(differs)
