"""A model in stages as safetensors files, which Hugging Face's from_pretrained reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule
from smdp.torch.pipelining.state_dicts.state_entries import check_shape, nearest

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


def save_safetensors(path: str | PathLike[str], pipe: PipelinedModule) -> None:
    """Write the weights of all stages; every rank of the job calls it.

    The rank of each stage writes what it has, so no rank ever holds the whole:
    `model-00001-of-00002.safetensors` and so on, with `model.safetensors.index.json` beside; a single file is
    `model.safetensors`. Names are those of the whole model; tied weights are there once, under their first
    name. A configuration is not written: `model.config.save_pretrained(path)` does that.

    Args:
        path: A folder that all ranks see, without such files.
        pipe: What pipeline() returned.

    Raises:
        ImportError: safetensors is not installed.
        ValueError: There are such files already, or an entry is no tensor.
        RuntimeError: A rank could not write; the message names it.
    """
    folder = Path(path)
    tensors: dict[str, Tensor] = {}

    def prepare() -> tuple[int, dict[str, int]]:
        _save_file()
        folder.mkdir(parents=True, exist_ok=True)
        present = [*folder.glob("model*.safetensors"), *folder.glob(_INDEX)]
        if present:
            raise ValueError(f"[smdp] {folder} holds {present[0].name} already; allowed: another folder")
        tensors.update(_tensors(pipe))
        return pipe.mesh.stage_rank, {name: tensor.nbytes for name, tensor in tensors.items()}

    # Only ranks of the first replica have any.
    sizes = {rank: held for rank, held in sorted(on_every_rank(prepare), key=lambda told: told[0]) if held}
    files = {rank: _file_name(index, len(sizes)) for index, rank in enumerate(sizes)}

    def write() -> None:
        if tensors:
            # The entry that transformers asks for.
            _save_file()(tensors, folder / files[pipe.mesh.stage_rank], metadata={"format": "pt"})

    def write_index() -> None:
        if pipe.mesh.rank == 0 and len(files) > 1:
            index = {
                "metadata": {"total_size": sum(size for held in sizes.values() for size in held.values())},
                "weight_map": {name: files[rank] for rank, held in sizes.items() for name in held},
            }
            (folder / _INDEX).write_text(json.dumps(index, indent=2, sort_keys=True), encoding="utf-8")

    on_every_rank(write)
    on_every_rank(write_index)


def read_safetensors(path: str | PathLike[str]) -> dict[str, Tensor] | None:
    """Read the weights of a folder, from one file or several.

    Args:
        path: A folder with `model.safetensors`, or `model.safetensors.index.json` and what that names.

    Returns:
        The tensors by name, on the CPU; None: there are no such files.

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
    """Tell whether a folder holds weights that load_safetensors() reads."""
    return any(Path(path, name).is_file() for name in (_SINGLE, _INDEX))


def load_safetensors(path: str | PathLike[str], pipe: PipelinedModule) -> None:
    """Read this rank's weights; every rank of the job calls it.

    Args:
        path: A folder that save_safetensors() has written, of any number of stages, or save_pretrained().
        pipe: What pipeline() returned, of the same model.

    Raises:
        ImportError: safetensors is not installed.
        ValueError: There are no such files, an entry is missing, or has another shape. The model is as it
            was.
        RuntimeError: Another rank could not read; the message names it.
    """
    folder = Path(path)
    found: dict[str, Tensor] = {}

    def read() -> None:
        file_of = _files(folder)
        entries = pipe.entries()
        wanted: dict[str, dict[str, str]] = {}
        for name, entry in entries.items():
            if not pipe.holds(entry) or entry.first_name != name:
                continue
            # Who wrote them may have kept a tied weight under another of its names.
            names = [name, *(other for other, tied in entries.items() if tied.first_name == name)]
            saved = next((each for each in names if each in file_of), None)
            if saved is None:
                raise ValueError(
                    f"[smdp] {folder} lacks {name!r}, which the model has{nearest(name, file_of)}. Make the"
                    " model as it was when it was saved."
                )
            wanted.setdefault(file_of[saved], {})[name] = saved
        for file, names_in_file in wanted.items():
            with _safe_open()(folder / file, framework="pt") as opened:
                for name, saved in names_in_file.items():
                    found[name] = opened.get_tensor(saved)
                    check_shape(name, found[name], entries[name].value)

    on_every_rank(read)
    # What is tied has been filled in with its first name.
    pipe.load_state_dict(found, strict=False)


def _files(folder: Path) -> dict[str, str]:
    """Give the file of each entry."""
    if (folder / _INDEX).is_file():
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        return dict(index["weight_map"])
    if not (folder / _SINGLE).is_file():
        raise ValueError(f"[smdp] {folder} holds neither {_SINGLE} nor {_INDEX}; allowed: a folder with one")
    with _safe_open()(folder / _SINGLE, framework="pt") as opened:
        return dict.fromkeys(opened.keys(), _SINGLE)


def _file_name(index: int, count: int) -> str:
    return _SINGLE if count == 1 else f"model-{index + 1:05}-of-{count:05}.safetensors"


def _tensors(pipe: PipelinedModule) -> dict[str, Tensor]:
    found = {}
    for name, entry in pipe.entries().items():
        if entry.first_name != name or not pipe.saves(entry):
            continue
        if not isinstance(entry.value, Tensor):
            raise ValueError(
                f"[smdp] {name!r} is {type(entry.value).__name__}; allowed in safetensors: tensors. save()"
                " keeps all of the model's state."
            )
        tensor = entry.value.detach().cpu().contiguous()
        # A part of a larger storage, which safetensors would have to cut out.
        is_part = tensor.untyped_storage().nbytes() != tensor.nbytes
        found[name] = tensor.clone() if is_part else tensor
    return found


def _save_file() -> Callable[..., None]:
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise ImportError(
            "[smdp] save_safetensors() needs the package safetensors, which is not installed:"
            " `pip install safetensors`; save() does without"
        ) from error
    found: Callable[..., None] = save_file
    return found


def _safe_open() -> Any:
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise ImportError(
            "[smdp] load_safetensors() needs the package safetensors, which is not installed:"
            " `pip install safetensors`"
        ) from error
    return safe_open
