"""`smp.sharded_data_parallel_checkpoint`: the whole model of a checkpoint of sharded data parallelism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smdp.torch.model_parallel.checkpoints.checkpoint_files import read_part
from smdp.torch.model_parallel.checkpoints.folders import DECISION, USER_CONTENT, folder_of, newest_tag
from smdp.torch.model_parallel.checkpoints.parameter_shards import (
    MARK,
    PREFIX,
    ShardFiles,
    files_in,
    read_shapes,
)
from smdp.torch.pipelining.state_dicts.state_entries import names_of

__all__ = ["get_full_state_dict_from_sharded_data_parallel_checkpoint"]


def get_full_state_dict_from_sharded_data_parallel_checkpoint(
    checkpoint_dir: str | PathLike[str],
    dtype: torch.dtype = torch.float32,
    tag: str | None = None,
    remove_smp_prefix: bool = True,
) -> dict[str, Tensor]:
    """Returns the whole model's state dict from the shards of a partial checkpoint. No job is needed.

    A tied parameter is there under one of its names. The slices of tensor parallelism are joined. The files
    may be in `{tag}_partial`, or in a folder `{tag}` as Amazon's example scripts read them.

    Args:
        checkpoint_dir: The folder of all checkpoints.
        dtype: The dtype of the result.
        tag: The name of the checkpoint. Default: the name in the file `newest`.
        remove_smp_prefix: Whether names are those of the model, without "module." in front.

    Raises:
        ValueError: There is no such checkpoint, or it is not complete.
    """
    root = Path(checkpoint_dir)
    if tag is None:
        newest = root / "newest"
        if not newest.is_file():
            raise ValueError(f"[smdp] {root} contains no file 'newest'; pass the tag of a checkpoint")
        tag = newest_tag(root, newest.read_text(encoding="utf-8"))
    folder = folder_of(root, tag)
    files = files_in(folder)
    if not files:
        raise ValueError(
            f"[smdp] {root} contains no checkpoint {tag!r} of sharded data parallelism; pass the folder and"
            " the tag that smp.save_checkpoint() was given"
        )
    content: Any = read_part(folder / USER_CONTENT)
    shapes = content.get("param_shapes") if isinstance(content, dict) else None
    if shapes is None:
        raise ValueError(f"[smdp] {folder / USER_CONTENT} has no 'param_shapes', which name the shards")
    dims = _divided_dims(folder, files)
    shards = [[read_part(each, is_mapped=True) for each in own] for own in files]
    names = read_shapes(shapes)
    saved = [ShardFiles(each, names, own) for each, own in zip(shards, files, strict=True)]
    paths = [folder / f"model_{own[0].stem.partition('_')[2]}.pt" for own in files]
    modules = [read_part(path)["module"] for path in paths]
    if MARK in shards[0][0]:
        read_part(folder / DECISION)  # what smdp writes is complete with this file
    else:  # parameters are there as well, without values
        listed = content.get("buffer_names", [])
        modules = [_buffers(each, listed, path) for each, path in zip(modules, paths, strict=True)]
    found = {
        name: _joined([each[name] for each in modules], dims.get(name))
        for name, value in modules[0].items()
        if isinstance(value, Tensor)
    }
    for parts in zip(*(each.parameters() for each in saved), strict=True):
        name = parts[0][0]
        found[name] = _joined([part for _, part in parts], dims.get(name))
    prefix = "" if remove_smp_prefix else PREFIX
    return {prefix + name: each.to(dtype) for name, each in found.items()}


def _buffers(module: Mapping[str, Any], names: Sequence[str], path: Path) -> dict[str, Any]:
    """Returns the buffers of a published file, by the names in the model: both may have `PREFIX`.

    Raises:
        ValueError: The file lacks a buffer.
    """
    stored = {name.removeprefix(PREFIX): value for name, value in module.items()}
    wanted = [name.removeprefix(PREFIX) for name in names]
    if lacking := [name for name in wanted if name not in stored]:
        raise ValueError(
            f"[smdp] {path} lacks {names_of(lacking)}, which 'buffer_names' of {USER_CONTENT} lists; use the"
            " files of one checkpoint"
        )
    return {name: stored[name] for name in wanted}


def _divided_dims(folder: Path, files: Sequence[Sequence[Path]]) -> dict[str, int]:
    """Returns which dimension of each parameter is divided, without those that all slices have whole.

    Raises:
        ValueError: The files of a slice are missing, or what says how to join them.
    """
    is_sliced = files[0][0].stem.count("_") > 1
    if not is_sliced:
        return {}
    decision: dict[str, Any] = read_part(folder / DECISION)
    wanted = decision["layout"]["tensor_parallel_degree"]
    if len(files) != wanted:
        raise ValueError(
            f"[smdp] {folder} has the shards of {len(files)} slices of the model, but was saved with"
            f" tensor_parallel_degree = {wanted}; copy the files of all hosts into it"
        )
    found: dict[str, int] = decision["slices"]
    return found


def _joined(parts: Sequence[Tensor], dim: int | None) -> Tensor:
    return parts[0] if dim is None else torch.cat(list(parts), dim)
