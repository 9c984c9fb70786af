"""A pipeline's schedule moves what its stages save for backward out of memory, and back ahead of its use."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import pytest
import torch.distributed as dist
from pipeline_models import (
    Language,
    assert_trains_as_one,
    batches,
    language_loss,
    made,
    train_pipeline,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_spawn import run

import smdp.torch
from smdp.torch.pipelining.engine import offload_actions
from smdp.torch.pipelining.engine.actions import Action
from smdp.torch.pipelining.engine.offload_actions import OffloadActions
from smdp.torch.pipelining.engine.step_run import StepRun


class Recomputed(Language):
    """Keeps only the inputs of its blocks."""

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        hidden = self.words(ids) + self.places[: ids.shape[1]]
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        return {"logits": self.head(self.norm(hidden))}


def whole_model(model: nn.Module, part: dict[str, Tensor]) -> Any:
    return model(**part)


def check_bits() -> None:
    offload_actions.LEAST_BYTES = 1  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        for make in (Language, Recomputed):
            assert_trains_as_one(
                make,
                batches(2),
                language_loss,
                schedules=["1f1b", "zb_v"],
                microbatches=8,
                call=whole_model,
                offload=f"disk:{folder}",
                horizon=1,
            )
        assert os.listdir(folder) == []


def test_bits_are_those_of_one_process() -> None:
    run(check_bits)


class Watched(OffloadActions):
    """Notes how many microbatches are in memory after each action, and what the row says of them."""

    def new_step(self, inputs: Any) -> Any:
        self.saved = super().new_step(inputs)
        self.counts: list[int] = []
        return self.saved

    def perform(self, action: Action, run: StepRun) -> None:
        super().perform(action, run)
        self.counts.append(len(self.saved.resident()))


def check_residents() -> None:
    offload_actions.LEAST_BYTES = 1  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        losses = []
        for offload in (None, f"disk:{folder}"):
            pipe = smdp.torch.pipeline(made(Language), 2, 8, "gpipe", offload=offload, horizon=2)
            if offload is not None:
                found = next(each for each in pipe._steps.handlers if isinstance(each, OffloadActions))
                found.__class__ = Watched
            losses.append(train_pipeline(pipe, batches(2)))
        assert losses[0] == losses[1]
        assert len(found.counts) == 16  # each microbatch leaves and returns
        assert 1 < max(found.counts) <= 3, found.counts


def test_few_microbatches_are_in_memory() -> None:
    run(check_residents)


def check_full_disk() -> None:
    offload_actions.LEAST_BYTES = 1  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        small = "?limit=64K" if dist.get_rank() == 0 else ""
        pipe = smdp.torch.pipeline(made(Language), 2, 8, "gpipe", offload=f"disk:{folder}{small}", horizon=1)
        with pytest.raises(Exception, match=r"needs .* more bytes, and .* are there") as error:
            train_pipeline(pipe, batches(1))
        others = [None] * 2
        dist.all_gather_object(others, folder)
        assert f"offload to {others[0]} needs" in str(error.value)
    dist.barrier()


def test_a_full_disk_is_an_error_on_all_ranks() -> None:
    run(check_full_disk)


def check_refusals() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = f"disk:{folder}"
        missing = place if dist.get_rank() == 0 else "disk:/no/such/place"
        with pytest.raises((ValueError, RuntimeError), match="/no/such/place is not a directory"):
            smdp.torch.pipeline(made(Language), 2, 8, offload=missing)
        with pytest.raises(
            ValueError, match=r"rank 0 passed horizon = 1 with offload, and rank 1 horizon = 2"
        ):
            smdp.torch.pipeline(made(Language), 2, 8, offload=place, horizon=1 + dist.get_rank())
        with pytest.raises(ValueError, match=r"rank 0 passed .* with offload, and rank 1 .* without offload"):
            smdp.torch.pipeline(made(Language), 2, 8, offload=None if dist.get_rank() else place)
        with pytest.raises(ValueError, match="this model is on the CPU"):
            smdp.torch.pipeline(made(Language), 2, 8, offload="host")
        with pytest.raises(ValueError, match=r"was called for this model, which pipeline\(\) would"):
            smdp.torch.pipeline(smdp.torch.offload_activations(made(Language), place), 2, 8)
        pipe = smdp.torch.pipeline(made(Language), 2, 8)
        with pytest.raises(ValueError, match=r"Pass offload and horizon to smdp.torch.pipeline\(\)"):
            smdp.torch.offload_activations(pipe, place)


def test_what_cannot_work_is_refused() -> None:
    run(check_refusals)
