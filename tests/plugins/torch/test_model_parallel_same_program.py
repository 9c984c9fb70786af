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
        (reads_on_first, r"this rank's host reads float32\[\] of stage 1|host reads float32"),
        (reads_on_last, r"run different programs: .*item \(read\)"),
        (doubles_on_first, r"run different programs: .*mul \(glue\) on stage 1"),
    ):
        pipe = smdp.torch.pipeline(made(Language), stages=2)
        start = time.monotonic()
        with pytest.raises(RuntimeError, match=text):
            pipe.train_step(batches(1)[0], loss_fn)
        assert time.monotonic() - start < 5

    pipe = smdp.torch.pipeline(made(Language), stages=2)
    for length in (12, 7, 12):
        pipe.train_step(batches(1, length=length)[0], language_loss)


def test_a_branch_on_the_rank_is_found() -> None:
    run(differs)
