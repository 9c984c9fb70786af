"""Checkpoints of a model, which can be loaded with any number of stages, slices, replicas or processes.

The format is that of `torch.distributed.checkpoint`. Entries have the names and coordinates of the whole
model, so a checkpoint depends neither on the stages nor on how layers are divided. The optimizer's entries
use the keys of a flat state dict as torch writes it, however the state is sharded.

    checkpoint.save("step-100", pipe, optimizer)
    checkpoint.load("step-100", pipe, optimizer)     # in a job of 2, 4 or 1 stages
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.checkpoints.divided_values import (
    DividedValues,
    check_by_elements,
    in_whole,
    slices_of,
    state_in_whole,
    whole_shape,
)
from smdp.torch.checkpoints.safetensors_files import has_safetensors as has_safetensors
from smdp.torch.checkpoints.safetensors_files import load_safetensors as load_safetensors
from smdp.torch.checkpoints.safetensors_files import save_safetensors as save_safetensors
from smdp.torch.checkpoints.saved_model import SavedModel, saved_model
from smdp.torch.checkpoints.shards import boxed, room_in_shards, unboxed
from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.optimizers.optimizer_link import OptimizerLink
from smdp.torch.pipelining.state_dicts.optimizer_state import (
    Room,
    load_named_state,
    named_state,
    room_for_state,
)
from smdp.torch.pipelining.state_dicts.state_entries import Entry, names_of, nearest
from smdp.torch.precision.mixed_precision import MixedPrecision
from smdp.torch.sharding.sharded_optimizer import ShardedOptimizer

__all__ = ["has_safetensors", "load", "load_safetensors", "save", "save_safetensors"]

_Link = TypeVar("_Link", bound=OptimizerLink)
_SCALE = "loss_scale"
_METADATA = ".metadata"  # torch writes this file last, so a checkpoint without it is incomplete


def save(
    path: str | PathLike[str],
    pipe: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    weights: bool = True,
) -> None:
    """Writes a checkpoint. All ranks of the job must call it.

    Each entry is written once. In a pipeline, the lowest stage that uses a weight writes it, and the first
    data-parallel replica writes for all replicas. Each rank writes its slices of divided layers, its
    shards, and its part of a ShardedOptimizer's state.

    Args:
        path: A folder that all ranks can access. It must not contain a checkpoint, which would be lost if
            writing failed.
        pipe: The result of pipeline() or tensor_parallel(), or a model in DistributedDataParallel or
            ShardedDataParallel.
        optimizer: An optimizer of its parameters, or None to save the model alone.
        weights: Whether to save parameters and buffers. Pass False if save_safetensors() saves them.

    Raises:
        ValueError: The folder contains a checkpoint, the optimizer does not belong to the model, or its state
            of a divided layer is not one number per element or parameter.
        TypeError: The model is neither in stages, nor divided, nor data parallel.
        RuntimeError: A rank could not write. The message names the rank.
    """
    folder, model = Path(path), saved_model(pipe)
    shards, mixed = _link(optimizer, ShardedOptimizer), _link(optimizer, MixedPrecision)
    readable = None if shards is None else shards.readable
    state: dict[str, dict[str, Any]] = {"model": {}, "optimizer": {}, "pipeline": {}, _SCALE: {}}

    def prepare() -> None:
        if (folder / _METADATA).exists():
            raise ValueError(f"[smdp] {folder} already contains a checkpoint. Save to another folder.")
        own = {parameter: name for name, parameter in model.named_parameters()}
        held = None if readable is None else readable.saved()
        optimized = {} if optimizer is None else named_state(optimizer, own, held)
        for name, entry in model.entries().items():
            if entry.first_name == name:
                if weights and model.saves(entry):
                    state["model"][name] = in_whole(entry.value, is_saved=True)
                if model.saves(entry, is_sharded=shards is not None):
                    state["optimizer"].update(state_in_whole(optimized.get(name, {}), name, entry.value))
        if dist.get_rank(model.group) == 0:
            if model.steps is not None:
                state["pipeline"]["steps"] = model.steps
            if mixed is not None:
                state[_SCALE].update(mixed.loss_scale_state())

    on_every_rank(prepare, model.group)
    try:
        dcp.save(
            {key: value for key, value in state.items() if value},
            checkpoint_id=folder,
            process_group=model.group,
        )
    except CheckpointException as error:
        raise RuntimeError(f"[smdp] cannot save the checkpoint {folder}: {_reasons(error)}") from error


def load(
    path: str | PathLike[str],
    pipe: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    weights: bool = True,
) -> None:
    """Loads a checkpoint written with any number of stages and ranks. All ranks of the job must call it.

    Values are copied into the existing parameters and buffers. The optimizer's state, its hyperparameters and
    the number of steps, on which a pipeline's random numbers depend, are also restored. Each rank reads its
    slices of divided layers and its part of a ShardedOptimizer's state, wherever they were written.

    Args:
        path: The folder. Load only checkpoints that you trust, because torch stores part of them as pickles.
        pipe: The result of pipeline() or tensor_parallel() for the same model, or this model in
            DistributedDataParallel or ShardedDataParallel. Stages, schedule, slices, shards and replicas may
            differ.
        optimizer: An optimizer of its parameters, created as before saving, or None to leave it out.
        weights: Whether to load parameters and buffers.

    Raises:
        ValueError: The checkpoint is incomplete; an entry is missing, unknown, or differs in shape or dtype;
            or the optimizer's groups differ from the saved ones. The model is left unchanged.
        TypeError: The model is neither in stages, nor divided, nor data parallel.
        RuntimeError: A rank could not read. The message names the rank. The model must not be used.
    """
    folder, model = Path(path), saved_model(pipe)
    shards, mixed = _link(optimizer, ShardedOptimizer), _link(optimizer, MixedPrecision)
    state: dict[str, dict[str, Any]] = {"model": {}, "optimizer": {}, "pipeline": {}, _SCALE: {}}
    own = {parameter: name for name, parameter in model.named_parameters()}

    def prepare() -> None:
        saved = _saved(folder)
        if weights:
            state["model"].update(_room(folder, model, saved))
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
                    f"[smdp] {folder} contains no optimizer state. Call load() without an optimizer."
                )
            if mixed is not None:
                keys = [key.removeprefix(f"{_SCALE}.") for key in saved if key.startswith(f"{_SCALE}.")]
                state[_SCALE] = dict.fromkeys(keys)
            room = _room_in_whole(own, room_in_shards if shards is None else shards.readable.room)
            state["optimizer"].update(room_for_state(optimizer, own, flat, room))

    def load_optimizer() -> None:
        assert optimizer is not None
        read = {
            key: unboxed(value.part) if isinstance(value, DividedValues) else value
            for key, value in state["optimizer"].items()
        }
        load_named_state(optimizer, own, read, fills_groups=shards is None)

    on_every_rank(prepare, model.group)
    # The optimizer is loaded first, so that its errors occur before any parameter has changed.
    _read(folder, {key: state[key] for key in ("optimizer", "pipeline", _SCALE)}, model.group)
    if optimizer is not None:
        on_every_rank(load_optimizer, model.group)
    if mixed is not None and state[_SCALE]:
        mixed.load_loss_scale(state[_SCALE])
    if weights:
        _read(folder, {"model": state["model"]}, model.group)
        # Tensors have already been filled in place.
        model.load_values(
            {name: item for name, item in state["model"].items() if not isinstance(item, Tensor)}
        )
    if "steps" in state["pipeline"]:
        model.steps = state["pipeline"]["steps"]


def _link(optimizer: Optimizer | None, kind: type[_Link]) -> _Link | None:
    """Returns the link of a kind in a chain of optimizers."""
    while isinstance(optimizer, OptimizerLink):
        if isinstance(optimizer, kind):
            return optimizer
        optimizer = optimizer.inner
    return None


# The shape and dtype of a tensor, or None for any other value.
_Described = tuple[torch.Size, torch.dtype] | None


def _read(folder: Path, state: dict[str, dict[str, Any]], group: dist.ProcessGroup | None) -> None:
    try:
        dcp.load(state, checkpoint_id=folder, process_group=group)
    except CheckpointException as error:
        raise RuntimeError(f"[smdp] cannot load the checkpoint {folder}: {_reasons(error)}") from error


def _saved(folder: Path) -> dict[str, _Described]:
    """Returns the contents of a checkpoint by torch's keys, such as 'model.h.0.weight'."""
    if not (folder / _METADATA).is_file():
        raise ValueError(
            f"[smdp] {folder} does not contain a complete checkpoint: {_METADATA}, which is written last, is"
            " missing. Pass a folder that save() has finished writing and that all ranks can access."
        )
    metadata: Metadata = dcp.FileSystemReader(folder).read_metadata()
    return {
        key: (item.size, item.properties.dtype) if isinstance(item, TensorStorageMetadata) else None
        for key, item in metadata.state_dict_metadata.items()
    }


def _room(folder: Path, model: SavedModel, saved: dict[str, _Described]) -> dict[str, Any]:
    """Returns this rank's entries by name, with the tensors to fill."""
    entries = model.entries()
    # A checkpoint that torch wrote from a whole model may have tied weights under all of their names.
    unknown = [name for name in _names(saved) if name not in entries]
    if unknown:
        raise ValueError(
            f"[smdp] {folder} contains {names_of(unknown)}, which the model does not"
            f" have{nearest(unknown[0], entries)}. Build the model as it was when it was saved."
        )
    room: dict[str, Any] = {}
    for name, entry in entries.items():
        if entry.first_name == name and model.holds(entry):
            _check(folder, name, entry, saved)
            room[name] = in_whole(entry.value, is_saved=False) if isinstance(entry.value, Tensor) else None
    return room


def _room_in_whole(names: Mapping[Parameter, str], room: Room) -> Room:
    """Returns a function that makes room for what this rank has of the state of whole parameters."""

    def found(parameter: Parameter, key: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
        slices = slices_of(parameter)
        if slices is None:
            return room(parameter, key, size, dtype)
        check_by_elements(key, size, names[parameter], parameter)
        if size != slices.shape:
            return room(parameter, key, size, dtype)
        return DividedValues(boxed(room(parameter, key, parameter.shape, dtype)), slices)

    return found


def _check(folder: Path, name: str, entry: Entry, saved: dict[str, _Described]) -> None:
    if f"model.{name}" not in saved:
        raise ValueError(
            f"[smdp] {folder} does not contain {name!r}, which the model has{nearest(name, _names(saved))}."
            " Build the model as it was when it was saved."
        )
    own = entry.value
    expected = (whole_shape(own), own.dtype) if isinstance(own, Tensor) else None
    if saved[f"model.{name}"] != expected:
        raise ValueError(
            f"[smdp] {name!r} is {_text(saved[f'model.{name}'])} in {folder}, but {_text(expected)} in the"
            " model. Build the model as it was when it was saved, with the same shape and dtype."
        )


def _names(saved: dict[str, _Described]) -> list[str]:
    return [key.removeprefix("model.") for key in saved if key.startswith("model.")]


def _text(described: _Described) -> str:
    if described is None:
        return "not a tensor"
    return f"{str(described[1]).removeprefix('torch.')}{list(described[0])}"


def _reasons(error: CheckpointException) -> str:
    """Returns the failed ranks and their errors. torch's text would also include their stacks."""
    return "; ".join(
        f"rank {rank}: {type(reason).__name__}: {reason}"
        for rank, (reason, _) in sorted(error.failures.items())
    )
