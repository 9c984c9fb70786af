"""`smp.save_checkpoint` and `smp.resume_from_checkpoint`: folders as SageMaker Model Parallel writes them.

{tag}_partial/             a file of the model and one of the optimizer for each rank of a replica
{tag}, user_content_{tag}  the whole model in one file, which any number of partitions loads
newest                     the tag that was saved last
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from smdp._shown import shown
from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.model_parallel.checkpoints import full_checkpoint, partial_checkpoint
from smdp.torch.model_parallel.checkpoints.checkpoint_files import replacing
from smdp.torch.model_parallel.job.collective_calls import meet
from smdp.torch.model_parallel.job.ranks import rdp_rank
from smdp.torch.model_parallel.job.state import state

_log = logging.getLogger(__name__)

_NEWEST = "newest"


def save_checkpoint(
    path: str | PathLike[str],
    tag: str,
    partial: bool = True,
    model: Any = None,
    optimizer: Any = None,
    user_content: Any = None,
    translate_if_full: bool = True,
    num_kept_partial_checkpoints: int | None = None,
) -> None:
    """Write a checkpoint; all ranks of a model-parallel group call it, at least those with rdp_rank() 0.

    What replicas have in common the first one writes; others return at once. A checkpoint counts when its
    last file is there: one that is cut short is refused on resume, and `newest` still names the one before.

    Args:
        path: A folder, made if need be; seen by all ranks, or by those of one host each.
        tag: Name of the checkpoint, the same on all ranks.
        partial: A file for each rank, to go on with; False: the whole model, without an optimizer.
        model: The smp.DistributedModel; None: it is not saved.
        optimizer: The smp.DistributedOptimizer; None: it is not saved.
        user_content: Anything that can be pickled; that of mp_rank() 0 counts.
        translate_if_full: A whole model gets the names that smp.state.module_manager translates to.
        num_kept_partial_checkpoints: How many partial checkpoints stay; older ones are removed. None: all.

    Raises:
        ValueError: An argument is wrong, or the model has not been partitioned by a first step yet.
        RuntimeError: Another rank could not write; the message names it.
        smdp.MismatchError: Another rank of the group made another call.
    """
    _check_tag(tag)
    _check_objects(model, optimizer)
    kept = num_kept_partial_checkpoints
    if kept is not None and (isinstance(kept, bool) or not isinstance(kept, int) or kept < 1):
        raise ValueError(
            f"[smdp] num_kept_partial_checkpoints = {shown(kept)} is not valid; allowed: an integer from 1,"
            " or None"
        )
    group = state.running.mesh.group("mp")
    if rdp_rank() != 0:
        _log.warning(
            "[smdp] smp.save_checkpoint(): replica %d saves nothing, the first one does; call it if"
            " smp.rdp_rank() == 0",
            rdp_rank(),
        )
        return
    meet(f"smp.save_checkpoint(tag={tag!r}, partial={bool(partial)})")
    folder = Path(path)
    on_every_rank(lambda: folder.mkdir(parents=True, exist_ok=True), group)
    if partial:
        partial_checkpoint.save(folder, tag, model, optimizer, user_content)
    else:
        if optimizer is not None:
            _log.warning("[smdp] smp.save_checkpoint(partial=False) saves no optimizer, as SMP does not")
        full_checkpoint.save(folder, tag, model, user_content, is_translated=translate_if_full)

    def finish() -> None:
        if partial_checkpoint.is_first_on_host():
            with replacing(folder / _NEWEST) as file:
                file.write(tag.encode())
            if kept is not None:
                partial_checkpoint.remove_old(folder, tag, kept)

    on_every_rank(finish, group)


def resume_from_checkpoint(
    path: str | PathLike[str],
    tag: str | None = None,
    partial: bool = True,
    strict: bool = True,
    load_optimizer: bool = True,
    load_sharded_optimizer_state: bool = True,
    translate_function: Callable[..., Mapping[str, Any]] | None = None,
) -> Any:
    """Load a checkpoint into the DistributedModel and the DistributedOptimizer; all ranks call it.

    Files are read and checked at once; values arrive where they belong at the first step, which partitions
    the model, as the checkpoint has it if that is partial. Load only what you trust: parts of it are pickles.

    Args:
        path: The folder.
        tag: Of the checkpoint. Default: what `newest` says.
        partial: Which kind. A whole model may be loaded with any configuration, and may also be in
            `model.safetensors`, where the tag is "pytorch_model.bin" and there is no such file.
        strict: Names must be those of the model.
        load_optimizer: Of a partial checkpoint, if it has one.
        load_sharded_optimizer_state: Accepted; sharded state comes later.
        translate_function: What makes a whole model's names those of the model.

    Returns:
        The user content; None where there is none.

    Raises:
        ValueError: There is no complete checkpoint, it is of another configuration, or there is no
            DistributedModel to load it into. Nothing has been loaded.
        RuntimeError: The same, on another rank; the message names it.
        smdp.MismatchError: Another rank of the group made another call.
    """
    if tag is not None:
        _check_tag(tag)
    group = state.running.mesh.group("mp")
    meet(f"smp.resume_from_checkpoint(tag={tag!r}, partial={bool(partial)})")
    folder = Path(path)
    found = on_every_rank(lambda: _newest(folder) if tag is None else tag, group)
    if len(set(found)) > 1:
        raise ValueError(
            f"[smdp] {folder / _NEWEST} names {', '.join(map(repr, found))} on the ranks of one model;"
            " allowed: the same on all hosts; name the tag"
        )
    if partial:
        return partial_checkpoint.load(folder, found[0], strict=strict, with_optimizer=load_optimizer)
    return full_checkpoint.load(folder, found[0], strict=strict, translate=translate_function)


def _newest(folder: Path) -> str:
    file = folder / _NEWEST
    if not file.is_file():
        raise ValueError(
            f"[smdp] {folder} holds no file {_NEWEST!r}, so there is no checkpoint to resume from; name the"
            " tag, or begin without"
        )
    tag = file.read_text(encoding="utf-8").strip()
    _check_tag(tag)
    return tag


def _check_tag(tag: object) -> None:
    if isinstance(tag, str) and tag and tag not in (".", "..") and not set(tag) & {"/", "\\", "\0", "\n"}:
        return
    raise ValueError(f"[smdp] tag = {shown(tag)} is not valid; allowed: a str that can name a file")


def _check_objects(model: Any, optimizer: Any) -> None:
    for name, given, own in (("model", model, state.model), ("optimizer", optimizer, state.optimizer)):
        if given is not None and given is not own:
            raise ValueError(
                f"[smdp] {name} = {type(given).__name__} is not the smp.Distributed{name.capitalize()} of"
                " this process; allowed: that one"
            )
