"""A tiny language model and the text it learns, for the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel

from smdp.torch.process_group.process_group import ProcessGroupSmdp
from smdp.transformers import DataParallel, Trainer, TrainingArguments

LENGTH = 24


def model(**config: Any) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": LENGTH, "vocab_size": 256}
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**{**shape, **no_dropout, **config}, bos_token_id=0, eos_token_id=0))


def rows(count: int, first: int = 0) -> list[dict[str, torch.Tensor]]:
    text = "".join(topics[name] for name in sorted(topics)[:20]).encode()
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    parts = [data[LENGTH * i : LENGTH * (i + 1)] for i in range(first, first + count)]
    return [{"input_ids": part, "labels": part} for part in parts]


def folder() -> str:
    return os.path.join(os.environ["SMDP_TEST_FOLDER"], "out")


def arguments(batch: int = 8, **options: Any) -> TrainingArguments:
    """Of a run whose global batch is `batch`, on any number of processes."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    defaults = {
        "max_steps": 20,
        "per_device_train_batch_size": batch // size,
        "per_device_eval_batch_size": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "seed": 3,
    }
    return TrainingArguments(folder(), **{**defaults, **options})


def trainer(args: TrainingArguments | None = None, cls: Any = Trainer, **options: Any) -> Any:
    defaults = {
        "model": model(),
        "train_dataset": rows(160),
        "eval_dataset": rows(21, 160),
        "plugins": [DataParallel()],
    }
    return cls(args=args or arguments(), **{**defaults, **options})


@contextmanager
def launched_with(name: str) -> Iterator[None]:
    """Have the variable by which `accelerate launch` asks for fsdp and the like."""
    variable = f"ACCELERATE_USE_{name.upper()}"
    os.environ[variable] = "true"
    try:
        yield
    finally:
        del os.environ[variable]


def losses(done: Any) -> list[float]:
    return [entry["loss"] for entry in done.state.log_history if "loss" in entry]


def weights_hash(module: torch.nn.Module) -> str:
    import hashlib

    digest = hashlib.sha256()
    for parameter in module.state_dict().values():
        if hasattr(parameter, "full_tensor"):  # shards
            parameter = parameter.full_tensor()
        digest.update(parameter.detach().float().contiguous().numpy().tobytes())
    return digest.hexdigest()


def is_over_smdp() -> bool:
    return isinstance(dist.distributed_c10d._get_default_group(), ProcessGroupSmdp)
