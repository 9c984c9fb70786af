"""Trainers of tiny models in stages, and of the one process that they are compared with, for the tests."""

from __future__ import annotations

import os
from typing import Any

import language_model as lm
import torch
import transformers
from model_parallel_models import without_dropout
from torch.utils.data import Dataset, IterableDataset

import smdp.torch
from smdp.transformers import DataParallel, ModelParallel, Trainer

MICROBATCHES = 4


def size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def stages() -> int:
    return int(os.environ.get("STAGES", "2"))


def tensor() -> int:
    return int(os.environ.get("TENSOR", "1"))


def plugins(**options: Any) -> list[Any]:
    """DataParallel first, to show that the order does not matter."""
    if size() == 1:
        return []
    usual = {"stages": stages(), "tensor": tensor(), "microbatches": MICROBATCHES}
    return [DataParallel(), ModelParallel(**{**usual, **options})]


def arguments(folder: str = "out", batch: int = 8, **options: Any) -> Any:
    """Of a run whose global batch is `batch`."""
    replicas = max(1, size() // (stages() * tensor()))
    args = lm.arguments(**{"per_device_train_batch_size": batch // replicas, **options})
    args.output_dir = os.path.join(os.environ["SMDP_TEST_FOLDER"], folder)
    return args


def trainer(args: Any = None, cls: Any = Trainer, **options: Any) -> Any:
    return lm.trainer(args or arguments(), cls, **{"plugins": plugins(), **options})


class Stopping(transformers.TrainerCallback):
    """Ends early, on the learning rates of a longer run."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop |= state.global_step == int(os.environ.get("STOP_AFTER", "0"))


def trained(*args: Any, **options: Any) -> Any:
    done = trainer(*args, callbacks=[Stopping()], **options)
    done.train()
    if size() > 1:
        assert isinstance(done.model_wrapped, smdp.torch.PipelinedModule)
    return done


def numbers(done: Any) -> list[list[float]]:
    """Losses and norms of gradients."""
    entries = [entry for entry in done.state.log_history if "loss" in entry]
    return [[entry[name] for entry in entries] for name in ("loss", "grad_norm")]


def model(family: str) -> Any:
    """Of four blocks, whose vocabulary is bytes."""
    torch.manual_seed(0)
    made = without_dropout(family, 4)
    made.resize_token_embeddings(256, mean_resizing=False)
    return made


def ragged(count: int) -> list[dict[str, torch.Tensor]]:
    """Rows of which ever fewer tokens count."""
    rows = lm.rows(count)
    return [
        {"input_ids": row["input_ids"], "labels": row["labels"].masked_fill(_late(8 + index % 9), -100)}
        for index, row in enumerate(rows)
    ]


def _late(first: int) -> torch.Tensor:
    return torch.arange(lm.LENGTH) >= first


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Rows that can be read only once."""

    def __init__(self, count: int) -> None:
        self._rows = iter(ragged(count))

    def __iter__(self) -> Any:
        return self._rows


class Masked(Dataset):  # type: ignore[type-arg]
    """Rows of which chance says what is to be learned."""

    def __init__(self, count: int) -> None:
        self._rows = lm.rows(count)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        row = self._rows[index]
        return {**row, "labels": row["labels"].masked_fill(torch.rand(lm.LENGTH) < 0.5, -100)}
