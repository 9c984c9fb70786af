"""Chooses the checkpoint to resume from, because a killed run may leave an incomplete one."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import torch.distributed as dist
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import logging

from smdp.torch.plugin_support import on_every_rank

_log = logging.get_logger(__name__)
# Zip archives, whose directory at the end shows that they are complete.
_OF_A_RANK = ("rng_state*.pth", "gradient_residuals*.pth")
_ARCHIVES = ("optimizer.pt", "scheduler.pt", "scaler.pt", "pytorch_model*.bin", *_OF_A_RANK)
_PARTS = ("*.safetensors", "*.index.json", *_ARCHIVES)


def newest_complete(folder: str) -> str | None:
    """Returns the newest complete checkpoint of a Trainer, the same on all ranks. Collective.

    Args:
        folder: The Trainer's output_dir.

    Returns:
        The checkpoint's folder, or None if there are no checkpoints.

    Raises:
        ValueError: There are checkpoints, but none is complete on all ranks.
    """

    def damages() -> dict[int, str | None]:
        found = Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*/")
        steps = {path: path.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-") for path in found}
        return {int(step): damage(path) for path, step in steps.items() if step.isdecimal()}

    told = on_every_rank(damages) if dist.is_initialized() else [damages()]
    seen: list[str] = []
    for step in sorted({step for own in told for step in own}, reverse=True):
        path = Path(folder, f"{PREFIX_CHECKPOINT_DIR}-{step}")
        what = next((found for own in told if (found := own.get(step, "it is missing on a rank"))), None)
        if what is None:
            for one in seen:
                _log.warning("[smdp] skipping a checkpoint, because it is incomplete: %s", one)
            return str(path)
        seen.append(f"{path.name}: {what}")
    if not seen:
        return None
    raise ValueError(
        f"[smdp] no checkpoint in {folder} is complete: {'; '.join(seen)}. Start again without"
        " resume_from_checkpoint, or resume from an earlier copy."
    )


def check_complete(checkpoint: str) -> None:
    """Checks that a checkpoint is complete. The Trainer handles a path that is not a folder.

    Raises:
        ValueError: A file is missing or truncated.
    """
    what = damage(Path(checkpoint)) if Path(checkpoint).is_dir() else None
    if what is not None:
        raise ValueError(
            f"[smdp] the checkpoint {checkpoint} is incomplete: {what}. Pass a different one, or"
            " resume_from_checkpoint=True for the newest complete checkpoint."
        )


def damage(checkpoint: Path) -> str | None:
    """Returns which of the Trainer's files in a checkpoint is missing or truncated, or None."""
    state = checkpoint / TRAINER_STATE_NAME  # the Trainer writes this file last
    if not state.exists():
        return f"{state.name} is missing"
    if _json(state) is None:
        return f"{state.name} is truncated"
    for path in sorted(path for pattern in _PARTS for path in checkpoint.glob(pattern)):
        if path.name.endswith(".index.json"):
            index = _json(path)
            if index is None:
                return f"{path.name} is truncated"
            for name in sorted(set(index.get("weight_map", {}).values())):
                if not (checkpoint / name).exists():
                    return f"{name} is missing"
        elif not (_is_whole(path) if path.suffix == ".safetensors" else zipfile.is_zipfile(path)):
            return f"{path.name} is truncated"
    split = checkpoint / "model_parallel"  # written by ModelParallel
    is_cut = split.is_dir() and not (split / ".metadata").exists()
    return f"{split.name}/.metadata is missing" if is_cut else None


def _json(path: Path) -> dict[str, dict[str, str]] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _is_whole(path: Path) -> bool:
    """Returns whether a safetensors file has the length that its header states."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(min(length, path.stat().st_size)))
        except ValueError:
            return False
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return path.stat().st_size >= 8 + length + max(ends, default=0)
