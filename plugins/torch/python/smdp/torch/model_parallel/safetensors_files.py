"""A model in stages as safetensors files, which Hugging Face's from_pretrained reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from os import PathLike
from pathlib import Path

from torch import Tensor

from smdp.torch.model_parallel.agreement import together
from smdp.torch.model_parallel.pipelined_module import PipelinedModule

_INDEX = "model.safetensors.index.json"


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
        return pipe.layout.stage_rank, {name: tensor.nbytes for name, tensor in tensors.items()}

    # Only ranks of the first replica have any.
    sizes = {rank: held for rank, held in sorted(together(prepare)) if held}
    files = {rank: _file_name(index, len(sizes)) for index, rank in enumerate(sizes)}

    def write() -> None:
        if tensors:
            # The entry that transformers asks for.
            _save_file()(tensors, folder / files[pipe.layout.stage_rank], metadata={"format": "pt"})

    def write_index() -> None:
        if pipe.layout.rank == 0 and len(files) > 1:
            index = {
                "metadata": {"total_size": sum(size for held in sizes.values() for size in held.values())},
                "weight_map": {name: files[rank] for rank, held in sizes.items() for name in held},
            }
            (folder / _INDEX).write_text(json.dumps(index, indent=2, sort_keys=True), encoding="utf-8")

    together(write)
    together(write_index)


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


def _file_name(index: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{index + 1:05}-of-{count:05}.safetensors"


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
