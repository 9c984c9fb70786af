"""Checkpoints of a model in stages, which any other number of stages, replicas or processes can load.

The format is that of `torch.distributed.checkpoint`. An entry has the name that it has in the whole model, so
a checkpoint does not depend on the stages. The optimizer's entries have the names of torch's flat state dict.

    checkpoint.save("step-100", pipe, optimizer)
    checkpoint.load("step-100", pipe, optimizer)     # in a job of 2, 4 or 1 stages
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.optim import Optimizer

from smdp.torch.checkpoints.safetensors_files import has_safetensors as has_safetensors
from smdp.torch.checkpoints.safetensors_files import load_safetensors as load_safetensors
from smdp.torch.checkpoints.safetensors_files import save_safetensors as save_safetensors
from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule
from smdp.torch.pipelining.state_dicts.optimizer_state import load_named_state, named_state, room_for_state
from smdp.torch.pipelining.state_dicts.state_entries import Entry, names_of, nearest

__all__ = ["has_safetensors", "load", "load_safetensors", "save", "save_safetensors"]

_METADATA = ".metadata"  # torch writes it last: without it a checkpoint is not complete


def save(
    path: str | PathLike[str],
    pipe: PipelinedModule,
    optimizer: Optimizer | None = None,
    *,
    weights: bool = True,
) -> None:
    """Write a checkpoint, each entry once; every rank of the job calls it.

    A weight that several stages use is written by the lowest of them; what data-parallel replicas have in
    common, by the first replica.

    Args:
        path: A folder that all ranks see. It must not hold a checkpoint yet: one that is overwritten is lost
            if writing ends early.
        pipe: What pipeline() returned.
        optimizer: Of its parameters; None: none is saved.
        weights: Save parameters and buffers; False where save_safetensors() does.

    Raises:
        ValueError: There is a checkpoint, or the optimizer is not of this model.
        RuntimeError: A rank could not write; the message names it.
    """
    folder = Path(path)
    state: dict[str, dict[str, Any]] = {"model": {}, "optimizer": {}, "pipeline": {}}

    def prepare() -> None:
        if (folder / _METADATA).exists():
            raise ValueError(f"[smdp] {folder} holds a checkpoint already; allowed: another folder")
        own = {parameter: name for name, parameter in pipe.named_parameters()}
        optimized = {} if optimizer is None else named_state(optimizer, own)
        for name, entry in pipe.entries().items():
            if entry.first_name == name and pipe.saves(entry):
                if weights:
                    state["model"][name] = (
                        entry.value.detach() if isinstance(entry.value, Tensor) else entry.value
                    )
                state["optimizer"].update(optimized.get(name, {}))
        if pipe.mesh.rank == 0:
            state["pipeline"]["steps"] = pipe.steps

    on_every_rank(prepare)
    try:
        dcp.save({key: value for key, value in state.items() if value}, checkpoint_id=folder)
    except CheckpointException as error:
        raise RuntimeError(f"[smdp] cannot save the checkpoint {folder}: {_reasons(error)}") from error


def load(
    path: str | PathLike[str],
    pipe: PipelinedModule,
    optimizer: Optimizer | None = None,
    *,
    weights: bool = True,
) -> None:
    """Read a checkpoint that any number of stages wrote; every rank of the job calls it.

    Values are read into the parameters and buffers that there are. So are the optimizer's state, its
    hyperparameters, and the number of steps that have run, on which random numbers depend.

    Args:
        path: The folder. Load only what you trust: torch keeps part of it as pickles.
        pipe: What pipeline() returned, of the same model; stages, schedule and replicas may be others.
        optimizer: Of its parameters, made as when it was saved.
        weights: Read parameters and buffers; False leaves them as they are.

    Raises:
        ValueError: There is no complete checkpoint; an entry is missing, unknown, or of another shape or
            dtype; parameters that share a group of the optimizer did not. The model is as it was.
        RuntimeError: A rank could not read; the message names it, and the model must not be used.
    """
    folder = Path(path)
    state: dict[str, dict[str, Any]] = {"model": {}, "optimizer": {}, "pipeline": {}}
    own = {parameter: name for name, parameter in pipe.named_parameters()}

    def prepare() -> None:
        saved = _saved(folder)
        if weights:
            state["model"].update(_room(folder, pipe, saved))
        if "pipeline.steps" in saved:
            state["pipeline"]["steps"] = None
        if optimizer is not None:
            flat = {
                key.removeprefix("optimizer."): described
                for key, described in saved.items()
                if key.startswith("optimizer.")
            }
            if not flat:
                raise ValueError(
                    f"[smdp] {folder} holds no optimizer's state; allowed: load() without an optimizer"
                )
            state["optimizer"].update(room_for_state(optimizer, own, flat))

    on_every_rank(prepare)
    # The optimizer first: what it refuses is known before a parameter has changed.
    _read(folder, {"optimizer": state["optimizer"], "pipeline": state["pipeline"]})
    if optimizer is not None:
        on_every_rank(lambda: load_named_state(optimizer, own, state["optimizer"]))
    if weights:
        _read(folder, {"model": state["model"]})
        # Tensors have been read into.
        pipe.load_state_dict(
            {name: item for name, item in state["model"].items() if not isinstance(item, Tensor)},
            strict=False,
        )
    pipe.steps = state["pipeline"].get("steps", pipe.steps)


# Shape and dtype of a tensor; None for anything else.
_Described = tuple[torch.Size, torch.dtype] | None


def _read(folder: Path, state: dict[str, dict[str, Any]]) -> None:
    try:
        dcp.load(state, checkpoint_id=folder)
    except CheckpointException as error:
        raise RuntimeError(f"[smdp] cannot load the checkpoint {folder}: {_reasons(error)}") from error


def _saved(folder: Path) -> dict[str, _Described]:
    """Returns what a checkpoint holds, by the keys that torch makes: 'model.h.0.weight'."""
    if not (folder / _METADATA).is_file():
        raise ValueError(
            f"[smdp] {folder} holds no complete checkpoint: {_METADATA}, which is written last, is not there;"
            " allowed: a folder that save() has written to its end, seen by all ranks"
        )
    metadata: Metadata = dcp.FileSystemReader(folder).read_metadata()
    return {
        key: (item.size, item.properties.dtype) if isinstance(item, TensorStorageMetadata) else None
        for key, item in metadata.state_dict_metadata.items()
    }


def _room(folder: Path, pipe: PipelinedModule, saved: dict[str, _Described]) -> dict[str, Any]:
    """Give this rank's entries, to be read into, by name."""
    entries = pipe.entries()
    # A checkpoint that torch wrote from a whole model may have tied weights under all of their names.
    unknown = [name for name in _names(saved) if name not in entries]
    if unknown:
        raise ValueError(
            f"[smdp] {folder} holds {names_of(unknown)}, which the model lacks{nearest(unknown[0], entries)}."
            " Make the model as it was when it was saved."
        )
    room: dict[str, Any] = {}
    for name, entry in entries.items():
        if entry.first_name == name and pipe.holds(entry):
            _check(folder, name, entry, saved)
            room[name] = entry.value.detach() if isinstance(entry.value, Tensor) else None
    return room


def _check(folder: Path, name: str, entry: Entry, saved: dict[str, _Described]) -> None:
    if f"model.{name}" not in saved:
        raise ValueError(
            f"[smdp] {folder} lacks {name!r}, which the model has{nearest(name, _names(saved))}. Make the"
            " model as it was when it was saved."
        )
    own = entry.value
    expected = (own.shape, own.dtype) if isinstance(own, Tensor) else None
    if saved[f"model.{name}"] != expected:
        raise ValueError(
            f"[smdp] {name!r} is {_text(saved[f'model.{name}'])} in {folder} and {_text(expected)} in the"
            " model; allowed: the same shape and dtype. Make the model as it was when it was saved."
        )


def _names(saved: dict[str, _Described]) -> list[str]:
    return [key.removeprefix("model.") for key in saved if key.startswith("model.")]


def _text(described: _Described) -> str:
    if described is None:
        return "no tensor"
    return f"{str(described[1]).removeprefix('torch.')}{list(described[0])}"


def _reasons(error: CheckpointException) -> str:
    """Tell which ranks failed, and why; torch adds their stacks."""
    return "; ".join(
        f"rank {rank}: {type(reason).__name__}: {reason}"
        for rank, (reason, _) in sorted(error.failures.items())
    )
