"""`smp.save_checkpoint` and `smp.resume_from_checkpoint`, with the folder layout of SageMaker Model Parallel.

{tag}_partial/             one file of the model and one of the optimizer for each rank of a replica
{tag}, user_content_{tag}  the whole model in one file, which can be loaded with any number of partitions
newest                     the tag that was saved last; with sharded data parallelism the folder, as Amazon's
                           example scripts read it, and for a tag that looks like the folder of another
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from smdp._errors import SmdpError
from smdp._shown import shown
from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.model_parallel.checkpoints import full_checkpoint, partial_checkpoint, published_shards
from smdp.torch.model_parallel.checkpoints.checkpoint_files import replacing
from smdp.torch.model_parallel.checkpoints.folders import SUFFIX, folder_of, newest_tag
from smdp.torch.model_parallel.job.collective_calls import meet
from smdp.torch.model_parallel.job.ranks import rdp_rank
from smdp.torch.model_parallel.job.state import state

_log = logging.getLogger(__name__)

_NEWEST = "newest"
_EVERYONE = (
    "With shard_optimizer_state or sharded_data_parallel_degree above 1, all ranks of the job must call"
    " smp.save_checkpoint(), not only those with smp.rdp_rank() 0."
)


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
    """Saves a checkpoint. All ranks of a model-parallel group with rdp_rank() 0 must call this.

    Only the first replica saves; a call on other replicas returns at once. But if a partial checkpoint
    contains sharded optimizer state, all ranks of the job must call this, because each saves its shard. A
    checkpoint is complete once its last file exists. An incomplete checkpoint is rejected on resume, and
    `newest` still names the one before it.

    Args:
        path: A folder, which is created if necessary. It must be visible to all ranks, or on each host to its
            ranks.
        tag: Name of the checkpoint, the same on all ranks.
        partial: True: one file per rank, to resume training. False: the whole model in one file, without the
            optimizer. With `fp16`, the file has the fp32 masters of parameters if their state is not sharded.
        model: The smp.DistributedModel. None: the model is not saved.
        optimizer: The smp.DistributedOptimizer. None: the optimizer is not saved.
        user_content: Any object that can be pickled; only that of mp_rank() 0 is saved.
        translate_if_full: Whether a whole model is saved under the names to which smp.state.module_manager
            translates.
        num_kept_partial_checkpoints: Number of partial checkpoints to keep. None: all of them.

    Raises:
        ValueError: An argument is wrong, or the model has not been partitioned by a first step yet.
        RuntimeError: Another rank could not write; the message names the rank.
        smdp.MismatchError: Another rank of the group called a different function.
    """
    _check_tag(tag)
    _check_objects(model, optimizer)
    kept = num_kept_partial_checkpoints
    if kept is not None and (isinstance(kept, bool) or not isinstance(kept, int) or kept < 1):
        raise ValueError(
            f"[smdp] num_kept_partial_checkpoints = {shown(kept)} is not valid; allowed: an integer of at"
            " least 1, or None"
        )
    # With sharded data parallelism, all ranks also gather the parameters of a whole model.
    has_shards = state.cfg.sharded_data_parallel_degree > 1 or (
        partial and optimizer is not None and optimizer.redefined_params
    )
    group = state.running.mesh.group("world" if has_shards else "mp")
    if rdp_rank() != 0 and not has_shards:
        _log.warning(
            "[smdp] smp.save_checkpoint(): replica %d saves nothing, because the first replica does; call"
            " it only if smp.rdp_rank() == 0",
            rdp_rank(),
        )
        return
    meet(f"smp.save_checkpoint(tag={tag!r}, partial={bool(partial)})")
    folder = Path(path)
    try:
        on_every_rank(lambda: folder.mkdir(parents=True, exist_ok=True), group)
    except SmdpError as error:
        if has_shards:
            error.args = (f"{error.args[0]} {_EVERYONE}", *error.args[1:])
        raise
    if partial:
        partial_checkpoint.save(folder, tag, model, optimizer, user_content)
    else:
        if optimizer is not None:
            _log.warning("[smdp] smp.save_checkpoint(partial=False) does not save the optimizer, as in SMP")
        full_checkpoint.save(folder, tag, model, user_content, is_translated=translate_if_full)

    is_folder = partial and (state.cfg.sharded_data_parallel_degree > 1 or tag.endswith(SUFFIX))

    def finish() -> None:
        if partial_checkpoint.is_first_on_host():
            with replacing(folder / _NEWEST) as file:
                file.write((f"{tag}{SUFFIX}" if is_folder else tag).encode())
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
    """Loads a checkpoint into the DistributedModel and the DistributedOptimizer. All ranks must call this.

    Files are read and checked at once. Values are applied at the first step, which partitions the model; a
    partial checkpoint also determines the partition. Load only checkpoints that you trust, because parts of
    them are pickles.

    Args:
        path: The folder of the checkpoint.
        tag: Name of the checkpoint. Default: the name in the file `newest`.
        partial: Whether to load a partial checkpoint instead of a whole model. A whole model can be loaded
            with any configuration. With tag "pytorch_model.bin" the model
                is read from `model.safetensors` if `pytorch_model.bin` does not exist.
        strict: Whether the names must match those of the model.
        load_optimizer: Whether to load the optimizer of a partial checkpoint, if it has one. With an
            optimizer, this must be False for shards of parameters that Amazon's library has saved.
        load_sharded_optimizer_state: Whether to load all of the optimizer of a partial checkpoint if its
            state was sharded; otherwise only masters and the loss scale. The number of replicas may differ.
        translate_function: Translates the names of a whole model to those of the DistributedModel's model.
            None: names of transformers are translated for models that tensor parallelism has replaced.

    Returns:
        The user content, or None if there is none.

    Raises:
        ValueError: There is no complete checkpoint, it belongs to another configuration, or there is no
            DistributedModel. Nothing has been loaded.
        RuntimeError: One of these errors occurred on another rank; the message names the rank.
        smdp.MismatchError: Another rank of the group called a different function.
    """
    if tag is not None:
        _check_tag(tag)
    group = state.running.mesh.group("mp")
    meet(f"smp.resume_from_checkpoint(tag={tag!r}, partial={bool(partial)})")
    folder = Path(path)
    found = on_every_rank(lambda: _newest(folder) if tag is None else tag, group)
    if len(set(found)) > 1:
        raise ValueError(
            f"[smdp] {folder / _NEWEST} names {', '.join(map(repr, found))} on the ranks of one model; it"
            " must be the same on all hosts. Pass the tag explicitly."
        )
    if partial and all(
        on_every_rank(lambda: published_shards.is_published(folder_of(folder, found[0])), group)
    ):
        return published_shards.load(folder, found[0], strict=strict, with_optimizer=load_optimizer)
    if partial:
        return partial_checkpoint.load(
            folder,
            found[0],
            strict=strict,
            with_optimizer=load_optimizer,
            with_moments=load_sharded_optimizer_state,
        )
    return full_checkpoint.load(folder, found[0], strict=strict, translate=translate_function)


def _newest(folder: Path) -> str:
    file = folder / _NEWEST
    if not file.is_file():
        raise ValueError(
            f"[smdp] {folder} contains no file {_NEWEST!r}, so there is no checkpoint to resume from; pass"
            " the tag, or start without a checkpoint"
        )
    tag = newest_tag(folder, file.read_text(encoding="utf-8"))
    _check_tag(tag)
    return tag


def _check_tag(tag: object) -> None:
    if isinstance(tag, str) and tag and tag not in (".", "..") and not set(tag) & {"/", "\\", "\0", "\n"}:
        return
    raise ValueError(f"[smdp] tag = {shown(tag)} is not valid; allowed: a str that is valid as a file name")


def _check_objects(model: Any, optimizer: Any) -> None:
    for name, given, own in (("model", model, state.model), ("optimizer", optimizer, state.optimizer)):
        if given is not None and given is not own:
            raise ValueError(
                f"[smdp] {name} = {type(given).__name__} is not the smp.Distributed{name.capitalize()} of"
                " this process; pass that object or None"
            )
