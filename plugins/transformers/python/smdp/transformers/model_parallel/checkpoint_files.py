"""The files of a Trainer's checkpoint for a pipelined model.

checkpoint-100/
    config.json, model-00001-of-00002.safetensors, ...   the files that from_pretrained() reads
    model_parallel/                                      the optimizer, in the format of torch's DCP
        stages.json                                      the numbers of stages and of ranks per stage
    scheduler.pt, rng_state_0.pth, trainer_state.json    as usual
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor
from transformers import Trainer

from smdp.torch import PipelinedModule
from smdp.torch.plugin_support import checkpoint, on_every_rank

_FOLDER = "model_parallel"
_STAGES = "stages.json"
_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json")


def save_model(trainer: Trainer, pipe: PipelinedModule, save: Callable[..., None], folder: str) -> None:
    """Writes the weights of all stages and the other files that the Trainer writes."""
    if getattr(trainer.model, "peft_config", None):
        save(state_dict=_gathered_adapters(pipe))
        return

    def write_all_but_weights() -> None:
        if pipe.mesh.rank == 0:
            save(state_dict={})
            for pattern in _WEIGHTS:
                for path in Path(folder).glob(pattern):
                    path.unlink()

    on_every_rank(write_all_but_weights)
    checkpoint.save_safetensors(folder, pipe)


def load_model(trainer: Trainer, pipe: PipelinedModule, load: Callable[[], None], folder: str) -> None:
    """Reads this rank's weights. `load()` reads formats other than safetensors."""
    if not getattr(trainer.model, "peft_config", None) and checkpoint.has_safetensors(folder):
        checkpoint.load_safetensors(folder, pipe)
        return
    with warnings.catch_warnings():
        # The Trainer also reads the weights of other stages, which are meta tensors here.
        warnings.filterwarnings("ignore", ".*copying from a non-meta parameter in the checkpoint to a meta")
        load()


def save_state(trainer: Trainer, pipe: PipelinedModule, folder: str) -> None:
    """Writes the optimizer's state by parameter name, and the learning rate schedule."""
    place = Path(folder, _FOLDER)

    def prepare() -> None:
        if pipe.mesh.rank == 0:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            own = {"stages": pipe.schedule.ranks, "tensor": pipe.mesh.placement.tensor}
            (place / _STAGES).write_text(json.dumps(own), encoding="utf-8")
            torch.save(trainer.lr_scheduler.state_dict(), Path(folder, "scheduler.pt"))

    on_every_rank(prepare)
    checkpoint.save(place, pipe, _plain(trainer.optimizer), weights=False)


def load_state(trainer: Trainer, pipe: PipelinedModule, folder: str) -> None:
    """Reads the files of save_state(), written with any number of stages.

    Raises:
        ValueError: The optimizer's state comes from a run without stages.
    """
    place, schedule = Path(folder, _FOLDER), Path(folder, "scheduler.pt")
    if place.is_dir():
        checkpoint.load(place, pipe, _plain(trainer.optimizer), weights=False)
        trainer.lr_scheduler.load_state_dict(torch.load(schedule, weights_only=True))
    elif Path(folder, "optimizer.pt").exists():
        raise ValueError(
            f"[smdp] {folder} was saved without ModelParallel. Its optimizer.pt has no parameter names, so it"
            " cannot be divided into stages. Continue without the plugin, or start from its weights with"
            f" from_pretrained({folder!r})."
        )


def load_random_state(pipe: PipelinedModule, load: Callable[[str], None], folder: str) -> None:
    """Restores the random state of the first rank of this replica, whatever the number of stages was.

    All ranks of a pipeline must draw the same numbers, because each reads the batches itself.
    """
    written = Path(folder, _FOLDER, _STAGES)
    sizes = json.loads(written.read_text(encoding="utf-8")) if written.exists() else {}
    ranks = sizes.get("stages", 1) * sizes.get("tensor", 1)
    names = (f"rng_state_{pipe.mesh.replica * ranks}.pth", "rng_state_0.pth", "rng_state.pth")
    saved = [path for path in (Path(folder, name) for name in names) if path.exists()]
    if not saved:
        load(folder)
        return
    with tempfile.TemporaryDirectory() as own:
        shutil.copy(saved[0], os.path.join(own, f"rng_state_{pipe.mesh.rank}.pth"))
        load(own)


def _gathered_adapters(pipe: PipelinedModule) -> dict[str, Tensor]:
    """Returns all trained weights on rank 0, which has room for them because adapters are small."""
    own = {
        name: entry.value.detach().cpu()
        for name, entry in pipe.entries().items()
        if isinstance(entry.value, Tensor)
        and entry.first_name == name
        and pipe.saves(entry)
        and (entry.value.requires_grad or "modules_to_save." in name)
    }
    is_first = pipe.mesh.rank == 0
    found: list[Any] = [None] * dist.get_world_size() if is_first else []
    dist.gather_object(own, found if is_first else None)
    return {name: tensor for part in found for name, tensor in part.items()}


def _plain(optimizer: Any) -> torch.optim.Optimizer:
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer
