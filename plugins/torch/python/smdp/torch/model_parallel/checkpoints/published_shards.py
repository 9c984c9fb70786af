"""Resumes from shards of parameters that have only what Amazon's example scripts read.

A checkpoint of Amazon's library has no file with the decision of smdp, and the form of its optimizer's state
is not published. Parameters and buffers are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.model_parallel.checkpoints.checkpoint_files import read_part, read_user_content
from smdp.torch.model_parallel.checkpoints.folders import DECISION, USER_CONTENT, folder_of
from smdp.torch.model_parallel.checkpoints.full_checkpoint import with_tied_names
from smdp.torch.model_parallel.checkpoints.parameter_shards import MARK, files_in
from smdp.torch.model_parallel.checkpoints.partial_checkpoint import check_names_and_shapes, check_target
from smdp.torch.model_parallel.checkpoints.sharded_data_parallel_checkpoint import (
    get_full_state_dict_from_sharded_data_parallel_checkpoint as read_whole,
)
from smdp.torch.model_parallel.job.ranks import pp_size, tp_size
from smdp.torch.model_parallel.job.state import state


def is_published(folder: Path) -> bool:
    """Returns whether a folder has such a checkpoint, and none that smdp has written, complete or not."""
    if (folder / DECISION).exists() or not (folder / USER_CONTENT).is_file():
        return False
    files = files_in(folder)
    first = read_part(files[0][0], is_mapped=True) if files else None
    return isinstance(first, dict) and "fp32_flat_groups" in first and MARK not in first


def load(root: Path, tag: str, *, strict: bool, with_optimizer: bool) -> Any:
    """Loads parameters and buffers; all ranks of a replica must call this.

    Args:
        root: The folder of all checkpoints.
        tag: The name of this one.
        strict: Whether the names must match those of the model.
        with_optimizer: Whether the script wants the state of its optimizer.

    Returns:
        The user content.

    Raises:
        ValueError: A file is missing, no model was created yet, or the script asks for the optimizer's state.
        RuntimeError: The same error occurred on another rank.
    """
    group = state.running.mesh.group("mp" if state.cfg.sharded_data_parallel_degree == 1 else "world")
    folder = folder_of(root, tag)
    found: dict[str, Any] = {}

    def read() -> None:
        if with_optimizer and state.optimizer is not None:
            raise ValueError(
                f"[smdp] {folder} has no {DECISION}, so smdp has not written it, and the form of its"
                " optimizer's state is not published; pass load_optimizer=False to load parameters and"
                " buffers"
            )
        check_target(folder, "model")
        found["model"] = with_tied_names(read_whole(root, tag=tag))
        if pp_size() == 1:  # otherwise the names of all stages are checked on loading
            # Tensors are whole, and those of this rank's model may be slices.
            shapes = {name: each.shape if tp_size() == 1 else None for name, each in found["model"].items()}
            check_names_and_shapes(folder, shapes, strict=strict)
        found["user_content"] = read_user_content(folder / USER_CONTENT)

    on_every_rank(read, group)
    on_every_rank(lambda: bool(state.model.load_state_dict(found["model"], strict=strict)), group)
    return found["user_content"]
