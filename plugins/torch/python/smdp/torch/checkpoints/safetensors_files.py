"""Saves and loads a model as safetensors files, which Hugging Face's from_pretrained() reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from smdp.torch.checkpoints.divided_values import slices_of, whole_shape
from smdp.torch.checkpoints.joined_slices import joined_shards, joined_slices, owners_of, whole_bytes
from smdp.torch.checkpoints.saved_model import SavedModel, saved_model
from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.mesh.slices import Slices
from smdp.torch.pipelining.state_dicts.state_entries import nearest
from smdp.torch.sharded_parameters.whole_state import like, shard_of

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


def save_safetensors(path: str | PathLike[str], pipe: nn.Module) -> None:
    """Writes the weights of all stages and slices as safetensors files. All ranks of the job must call it.

    The rank of each stage writes its own weights, and ranks with slices of a stage write a part of its whole
    weights each, so no rank ever holds the whole model. The files are
    `model-00001-of-00002.safetensors` and so on, with an index `model.safetensors.index.json`, or a single
    `model.safetensors`. Entries have the names of the whole model; tied weights are saved once, under their
    first name. The configuration is not written; call `model.config.save_pretrained(path)` for it.

    Args:
        path: A folder that all ranks can access. It must not contain such files.
        pipe: The result of pipeline() or tensor_parallel(), or a model in DistributedDataParallel or
            ShardedDataParallel.

    Raises:
        ImportError: safetensors is not installed.
        ValueError: The folder contains such files, or an entry is not a tensor.
        TypeError: The model is neither in stages, nor divided, nor data parallel.
        RuntimeError: A rank could not write. The message names the rank.
    """
    folder, model = Path(path), saved_model(pipe)
    mesh = model.mesh
    slices = () if mesh is None else mesh.ranks("tp")
    if mesh is not None and len(slices) > 1:
        mesh.make("tp")
    # The place of this rank's file among all files.
    here = (0, model.shard[0]) if mesh is None else (mesh.stage_rank, slices.index(mesh.rank))
    tensors: dict[str, Tensor] = {}
    owners: dict[str, int] = {}

    def prepare() -> tuple[tuple[int, int], dict[str, int]]:
        _save_file()
        folder.mkdir(parents=True, exist_ok=True)
        if mesh is not None and model.shard[1] > 1:
            raise ValueError(
                "[smdp] save_safetensors() does not support a model that is both divided by"
                " tensor_parallel() and in ShardedDataParallel. Use save(), and save_safetensors() after"
                " loading it into either of them."
            )
        present = [*folder.glob("model*.safetensors"), *folder.glob(_INDEX)]
        if present:
            raise ValueError(f"[smdp] {folder} already contains {present[0].name}. Save to another folder.")
        tensors.update(_tensors(model))
        owners.update(owners_of(tensors, model.shard[1] * max(1, len(slices))))
        if model.shard[1] > 1:  # buffers may differ, and the first rank's count
            owners.update({name: 0 for name, value in tensors.items() if not isinstance(value, DTensor)})
        return here, {name: whole_bytes(value) for name, value in tensors.items() if owners[name] == here[1]}

    # Only the ranks of the first replica have tensors to write.
    told = on_every_rank(prepare, model.group)
    sizes = {place: held for place, held in sorted(told, key=lambda each: each[0]) if held}
    files = {place: _file_name(index, len(sizes)) for index, place in enumerate(sizes)}
    if mesh is not None and len(slices) > 1 and tensors:
        tensors = joined_slices(tensors, owners, mesh)
    if model.shard[1] > 1:
        tensors = joined_shards(tensors, owners, model.shard[0])

    def write() -> None:
        if tensors:
            # transformers requires this metadata entry.
            _save_file()(_apart(tensors), folder / files[here], metadata={"format": "pt"})

    def write_index() -> None:
        if dist.get_rank(model.group) == 0 and len(files) > 1:
            index = {
                "metadata": {"total_size": sum(size for held in sizes.values() for size in held.values())},
                "weight_map": {name: files[place] for place, held in sizes.items() for name in held},
            }
            (folder / _INDEX).write_text(json.dumps(index, indent=2, sort_keys=True), encoding="utf-8")

    on_every_rank(write, model.group)
    on_every_rank(write_index, model.group)


def read_safetensors(path: str | PathLike[str]) -> dict[str, Tensor] | None:
    """Reads the weights in a folder from one file or several.

    Args:
        path: A folder with `model.safetensors`, or with `model.safetensors.index.json` and its files.

    Returns:
        The tensors by name, on the CPU, or None if there are no such files.

    Raises:
        ImportError: safetensors is not installed.
    """
    folder = Path(path)
    names = ["model.safetensors"]
    if (folder / _INDEX).is_file():
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        names = sorted(set(index["weight_map"].values()))
    elif not (folder / names[0]).is_file():
        return None
    from safetensors.torch import load_file

    return {name: tensor for file in names for name, tensor in load_file(folder / file).items()}


def has_safetensors(path: str | PathLike[str]) -> bool:
    """Returns whether a folder contains weights that load_safetensors() reads."""
    return any(Path(path, name).is_file() for name in (_SINGLE, _INDEX))


def load_safetensors(path: str | PathLike[str], pipe: nn.Module) -> None:
    """Loads this rank's weights from safetensors files. All ranks of the job must call it.

    A rank reads only its slices of divided layers.

    Args:
        path: A folder written by save_safetensors(), with any number of stages and slices, or by
            save_pretrained().
        pipe: The result of pipeline() or tensor_parallel() for the same model, or this model in
            DistributedDataParallel or ShardedDataParallel.

    Raises:
        ImportError: safetensors is not installed.
        ValueError: There are no such files, or an entry is missing or has a different shape. The model is
            left unchanged.
        TypeError: The model is neither in stages, nor divided, nor data parallel.
        RuntimeError: Another rank could not read. The message names the rank.
    """
    folder, model = Path(path), saved_model(pipe)
    found: dict[str, Tensor] = {}

    def read() -> None:
        file_of = _files(folder)
        entries = model.entries()
        wanted: dict[str, dict[str, str]] = {}
        for name, entry in entries.items():
            if not model.holds(entry) or entry.first_name != name:
                continue
            # The files may have a tied weight under any of its names.
            names = [name, *(other for other, tied in entries.items() if tied.first_name == name)]
            saved = next((each for each in names if each in file_of), None)
            if saved is None:
                raise ValueError(
                    f"[smdp] {folder} does not contain {name!r}, which the model"
                    f" has{nearest(name, file_of)}. Build the model as it was when it was saved."
                )
            wanted.setdefault(file_of[saved], {})[name] = saved
        for file, names_in_file in wanted.items():
            with _safe_open()(folder / file, framework="pt") as opened:
                for name, saved in names_in_file.items():
                    found[name] = _own_part(opened, saved, name, entries[name].value)

    on_every_rank(read, model.group)
    # Tied weights are filled under their first name.
    model.load_values(found)


def _own_part(opened: Any, saved: str, name: str, value: Any) -> Tensor:
    """Reads this rank's part of an entry.

    Raises:
        ValueError: The entry is not a tensor of the model, or has another shape.
    """
    if not isinstance(value, Tensor):
        raise ValueError(
            f"[smdp] {name!r} is a tensor in the files, but a {type(value).__name__} in the model."
        )
    stored = opened.get_slice(saved)
    given, expected = list(stored.get_shape()), list(whole_shape(value))
    if given != expected:
        raise ValueError(
            f"[smdp] {name!r} is {given} in the files, but {expected} in the model; both must have the same"
            " shape"
        )
    slices = slices_of(value)
    if isinstance(value, DTensor):
        own = _in_slices(opened, stored, saved, slices)
        return like(value, shard_of(own, value).contiguous())
    return _in_slices(opened, stored, saved, slices)


def _in_slices(opened: Any, stored: Any, saved: str, slices: Slices | None) -> Tensor:
    """Reads a whole tensor, or the slices of it that this rank has."""
    if slices is None:
        whole: Tensor = opened.get_tensor(saved)
        return whole
    before = (slice(None),) * slices.dim
    indices = [(*before, slice(begin, end)) for begin, end in slices.ranges]
    return torch.cat([stored[index] for index in indices], slices.dim)


def _files(folder: Path) -> dict[str, str]:
    """Returns the file of each entry by name."""
    if (folder / _INDEX).is_file():
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        return dict(index["weight_map"])
    if not (folder / _SINGLE).is_file():
        raise ValueError(
            f"[smdp] {folder} contains neither {_SINGLE} nor {_INDEX}. Pass a folder with one of these files."
        )
    with _safe_open()(folder / _SINGLE, framework="pt") as opened:
        return dict.fromkeys(opened.keys(), _SINGLE)


def _file_name(index: int, count: int) -> str:
    return _SINGLE if count == 1 else f"model-{index + 1:05}-of-{count:05}.safetensors"


def _tensors(model: SavedModel) -> dict[str, Tensor]:
    """Returns the entries that this rank saves with those that have its other slices."""
    found = {}
    for name, entry in model.entries().items():
        if entry.first_name != name or not model.joins(entry):
            continue
        if not isinstance(entry.value, Tensor):
            raise ValueError(
                f"[smdp] {name!r} is a {type(entry.value).__name__}, but safetensors files contain only"
                " tensors. Use save(), which writes all of the model's state."
            )
        found[name] = entry.value
    return found


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns tensors on the CPU that are not views of larger storages, which safetensors refuses."""
    found = {}
    for name, value in tensors.items():
        tensor = value.detach().cpu().contiguous()
        is_part = tensor.untyped_storage().nbytes() != tensor.nbytes
        found[name] = tensor.clone() if is_part else tensor
    return found


def _save_file() -> Callable[..., None]:
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise ImportError(
            "[smdp] save_safetensors() needs the package safetensors, which is not installed. Run"
            " `pip install safetensors`, or use save(), which does not need it."
        ) from error
    found: Callable[..., None] = save_file
    return found


def _safe_open() -> Any:
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise ImportError(
            "[smdp] load_safetensors() needs the package safetensors, which is not installed. Run"
            " `pip install safetensors`."
        ) from error
    return safe_open
