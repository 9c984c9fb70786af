"""A checkpoint of the whole model in one file, with the names that the model has without smdp."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smdp.torch.checkpoints.safetensors_files import read_safetensors
from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.model_parallel.checkpoints.checkpoint_files import read_user_content, replacing
from smdp.torch.model_parallel.checkpoints.partial_checkpoint import check_target
from smdp.torch.model_parallel.job.objects import pack
from smdp.torch.model_parallel.job.ranks import mp_rank, rank
from smdp.torch.model_parallel.job.state import state
from smdp.torch.model_parallel.training.merged_masters import merged_masters, with_masters

# The tag with which transformers resumes, although it writes safetensors.
_TRANSFORMERS_TAG = "pytorch_model.bin"


def save(root: Path, tag: str, model: Any, user_content: Any, *, is_translated: bool) -> None:
    """Saves the model and the user content on this replica's first rank. All of its ranks must call this.

    With `fp16`, masters are saved in place of parameters, unless the optimizer's state is sharded.

    Raises:
        ValueError: The user content cannot be pickled.
        RuntimeError: Another rank could not write.
    """
    has_shards = state.cfg.sharded_data_parallel_degree > 1
    group = state.running.mesh.group("world" if has_shards else "mp")
    is_writer = (rank() if has_shards else mp_rank()) == 0
    content: list[Tensor] = []

    def prepare() -> None:
        if is_writer:
            content.append(pack(user_content, "smp.save_checkpoint(user_content=...)"))

    on_every_rank(prepare, group)
    whole = None if model is None else model.state_dict(gather_to_rank0=True)
    masters = {} if model is None else merged_masters()

    def write() -> None:
        if not is_writer:
            return
        if whole is not None:
            named = with_masters(whole, masters)
            with replacing(root / tag) as file:
                torch.save(_translated(named) if is_translated else named, file)
        with replacing(root / f"user_content_{tag}") as file:
            file.write(content[0].numpy().tobytes())

    on_every_rank(write, group)


def load(root: Path, tag: str, *, strict: bool, translate: Callable[..., Mapping[str, Any]] | None) -> Any:
    """Loads the whole model; all ranks of a replica must call this.

    Returns:
        The user content.

    Raises:
        ValueError: There is no such checkpoint, or no model to load it into.
        RuntimeError: The same error occurred on another rank.
    """
    group = state.running.mesh.group("mp")
    found: dict[str, Any] = {}

    def read() -> None:
        check_target(root / tag, "model")
        whole = _read(root, tag)
        found["model"] = with_tied_names(_named_as_here(whole) if translate is None else translate(whole))
        content = root / f"user_content_{tag}"
        found["user_content"] = read_user_content(content if content.is_file() else root / "user_content.pt")

    on_every_rank(read, group)
    on_every_rank(lambda: bool(state.model.load_state_dict(found["model"], strict=strict)), group)
    return found["user_content"]


def _read(root: Path, tag: str) -> Mapping[str, Any]:
    path = root / tag
    if not path.is_file():
        safe = read_safetensors(root) if tag == _TRANSFORMERS_TAG else None
        if safe is not None:
            return safe
        is_partial = (root / f"{tag}_partial").is_dir()
        hint = "; there is a partial checkpoint with this tag: resume with partial=True" if is_partial else ""
        raise ValueError(
            f"[smdp] {root} contains no full checkpoint {tag!r}{hint or '; pass the tag of an existing one'}"
        )
    try:
        found: Mapping[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"[smdp] {path} contains more than tensors and plain values: {error} If you trust the file, load"
            " it with smp.load(path, partial=False) and model.load_state_dict()."
        ) from error
    except Exception as error:
        raise ValueError(f"[smdp] {path} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(found, Mapping):
        raise ValueError(f"[smdp] {path} contains a {type(found).__name__}; expected a state dict")
    return found


def _translated(whole: dict[str, Any]) -> dict[str, Any]:
    for to_plain, _ in state.module_manager.translate_functions:
        whole = to_plain(whole)
    return whole


def _named_as_here(whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a state dict with the names of the model, if it has those of the modules that were replaced."""
    if all(name in whole for name in state.model.get_module().state_dict()):
        return whole
    for _, from_plain in reversed(state.module_manager.translate_functions):
        whole = from_plain(whole)
    return whole


def with_tied_names(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a state dict with all names of tied weights, of which safetensors keeps one."""
    found = dict(whole)
    module: nn.Module = state.model.get_module()
    names: dict[int, list[str]] = {}
    for name, value in module.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor):
            names.setdefault(id(value), []).append(name)
    for tied in names.values():
        kept = next((name for name in tied if name in whole), None)
        if kept is not None:
            found.update({name: whole[kept] for name in tied if name not in whole})
    return found
