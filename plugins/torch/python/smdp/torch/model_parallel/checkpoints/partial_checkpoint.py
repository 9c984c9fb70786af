"""A checkpoint with one file per rank, from which the same configuration resumes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smdp import pipeline
from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.model_parallel.checkpoints.checkpoint_files import part_suffix, replacing, shard_suffix
from smdp.torch.model_parallel.job.objects import pack
from smdp.torch.model_parallel.job.ranks import get_mp_group, rank, rdp_rank
from smdp.torch.model_parallel.job.state import state
from smdp.torch.model_parallel.training.distributed_optimizer import joined_part

_SUFFIX = "_partial"
_USER_CONTENT = "user_content.pt"
# The partition and the contents of the checkpoint. This file is written last.
_DECISION = "partition_decision.pt"
_STRATEGIES = {"cluster": "DPT", "spread": "TPD"}


def save(root: Path, tag: str, model: Any, optimizer: Any, user_content: Any) -> None:
    """Saves the parts of all ranks of this replica; all of its ranks must call this.

    If the optimizer's state is sharded, all ranks of the job must call this. The first replica then saves the
    model, and each rank its shard.

    Raises:
        ValueError: The model is not partitioned yet, or the user content cannot be pickled.
        RuntimeError: Another rank could not write.
    """
    folder = root / f"{tag}{_SUFFIX}"
    has_shards = optimizer is not None and optimizer.redefined_params
    group = state.running.mesh.group("world" if has_shards else "mp")
    is_first_replica = rdp_rank() == 0

    def prepare() -> Tensor | None:
        if model is not None and not model.partitioned:
            raise ValueError(
                "[smdp] smp.save_checkpoint(partial=True) was called before the first step, which partitions"
                " the model; call it after the first step"
            )
        folder.mkdir(parents=True, exist_ok=True)
        if is_first_on_host():
            # Marks an existing checkpoint with this tag as incomplete.
            (folder / _DECISION).unlink(missing_ok=True)
        return pack(user_content, "smp.save_checkpoint(user_content=...)") if rank() == 0 else None

    content = on_every_rank(prepare, group)[0]

    def write() -> None:
        if model is not None and is_first_replica:
            with replacing(folder / f"model_{part_suffix()}.pt") as file:
                torch.save(model.local_state_dict(), file)
        if optimizer is not None:
            suffix = shard_suffix(rdp_rank()) if has_shards else part_suffix()
            with replacing(folder / f"optimizer_{suffix}.pt") as file:
                torch.save(optimizer.local_state_dict(gather_if_shard=False), file)
        if is_first_on_host():
            assert content is not None
            with replacing(folder / _USER_CONTENT) as file:
                file.write(content.numpy().tobytes())

    on_every_rank(write, group)

    def finish() -> None:
        if is_first_on_host():
            decision = {
                "layout": _layout(),
                "contents": [
                    name for name, part in (("model", model), ("optimizer", optimizer)) if part is not None
                ],
                "partition": None if model is None else model.partition_decision,
                "ranks": None if model is None else model.partition_ranks,
                "shards": state.running.mesh.replicas if has_shards else 0,
                "steps": 0 if model is None or model.pipe is None else model.pipe.steps,
            }
            with replacing(folder / _DECISION) as file:
                torch.save(decision, file)

    on_every_rank(finish, group)


def load(root: Path, tag: str, *, strict: bool, with_optimizer: bool, with_shards: bool) -> Any:
    """Loads this rank's part; all ranks of a replica must call this.

    Args:
        root: The folder of all checkpoints.
        tag: The name of this one.
        strict: Whether the names must match those of the model.
        with_optimizer: Whether to load the optimizer, if its state was not sharded.
        with_shards: Whether to load the optimizer, if its state was sharded.

    Returns:
        The user content.

    Raises:
        ValueError: There is no complete checkpoint, it belongs to another configuration, or there is no model
            or optimizer to load it into.
        RuntimeError: The same error occurred on another rank.
    """
    folder = root / f"{tag}{_SUFFIX}"
    group = state.running.mesh.group("mp")
    found: dict[str, Any] = {}

    def read() -> None:
        decision = _read_decision(folder)
        # Partitions that were saved without ranks use the placement of their schedule.
        found.update((name, decision.get(name)) for name in ("partition", "ranks", "steps"))
        shards = decision.get("shards", 0)
        if "model" in decision["contents"]:
            check_target(folder, "model")
            found["model"] = read_part(folder / f"model_{part_suffix()}.pt")
        if "optimizer" in decision["contents"] and (with_shards if shards else with_optimizer):
            check_target(folder, "optimizer")
            if shards:
                parts = [folder / f"optimizer_{shard_suffix(number)}.pt" for number in range(shards)]
                found["optimizer"] = joined_part([read_part(part, is_mapped=True) for part in parts])
            else:
                found["optimizer"] = read_part(folder / f"optimizer_{part_suffix()}.pt")
        found["user_content"] = read_user_content(folder / _USER_CONTENT)

    def apply() -> None:
        if "model" in found:
            state.model.fix_partition(found["partition"], found["steps"], found["ranks"])
            state.model.load_state_dict(found["model"], strict=strict, same_partition_load=True)
        if "optimizer" in found:
            state.optimizer.load_state_dict(found["optimizer"])

    on_every_rank(read, group)
    on_every_rank(apply, group)
    return found["user_content"]


def is_first_on_host() -> bool:
    """Returns whether this rank writes files for all ranks of its host, as hosts may have separate disks."""
    hosts = state.running.mesh.group("world").core.hosts
    neighbors = next(host for host in hosts if rank() in host)
    return rank() == min(set(neighbors) & set(get_mp_group()))


def remove_old(root: Path, tag: str, kept: int) -> None:
    """Removes all but the newest `kept` partial checkpoints; the one of this tag counts as newest."""
    own = root / f"{tag}{_SUFFIX}"
    others = [
        (folder.stat().st_mtime, folder)
        for folder in root.glob(f"*{_SUFFIX}")
        if folder != own and any(folder.glob(_USER_CONTENT))
    ]
    for _, folder in sorted(others, reverse=True)[kept - 1 :]:
        # Other hosts may remove the same folder of a shared disk.
        shutil.rmtree(folder, ignore_errors=True)


def read_part(path: Path, *, is_mapped: bool = False) -> Any:
    """Loads a file written by torch.save().

    Args:
        path: The file.
        is_mapped: Whether tensors are read from the file only when they are used.

    Raises:
        ValueError: The file does not exist or is damaged.
    """
    if not path.is_file():
        raise ValueError(
            f"[smdp] {path.parent} is not complete: {path.name} is missing; every rank must see its own file"
        )
    try:
        return torch.load(path, map_location="cpu", weights_only=False, mmap=is_mapped)
    except Exception as error:
        raise ValueError(f"[smdp] {path} cannot be read: {type(error).__name__}: {error}") from error


def read_user_content(path: Path) -> Any:
    """Returns the user content; None if the file is missing, or empty as transformers writes it."""
    return read_part(path) if path.is_file() and path.stat().st_size > 0 else None


def check_target(source: Path, name: str) -> None:
    """Checks that the object into which a part of a checkpoint is loaded exists."""
    if getattr(state, name) is None:
        hint = ", or pass load_optimizer=False" if name == "optimizer" else ""
        raise ValueError(
            f"[smdp] {source} contains the state of the {name}, but there is no"
            f" smp.Distributed{name.capitalize()} in this process yet; call smp.resume_from_checkpoint()"
            f" after creating it{hint}"
        )


def _read_decision(folder: Path) -> dict[str, Any]:
    path = folder / _DECISION
    if not path.is_file():
        others = sorted(each.name.removesuffix(_SUFFIX) for each in folder.parent.glob(f"*{_SUFFIX}"))
        raise ValueError(
            f"[smdp] {folder} contains no complete partial checkpoint, because {_DECISION}, which is written"
            f" last, is missing; partial checkpoints in {folder.parent}: {', '.join(others) or 'none'}"
        )
    decision: dict[str, Any] = read_part(path)
    saved, own = decision["layout"], _layout()
    other = [name for name in own if saved[name] != own[name] and None not in (saved[name], own[name])]
    if other:
        raise ValueError(
            f"[smdp] {folder} was saved with "
            + ", ".join(f"{name} = {saved[name]}" for name in other)
            + ", but this job has "
            + ", ".join(f"{name} = {own[name]}" for name in other)
            + "; use the configuration that saved it, or a checkpoint saved with partial=False, which can be"
            " loaded with any configuration"
        )
    return decision


def _layout() -> dict[str, Any]:
    """Returns the settings that must be equal for the parts of a checkpoint to match."""
    cfg = state.cfg
    stages = None
    # Otherwise the checkpoint contains the placement.
    if cfg.schedule != "auto" and cfg.auto_partition:
        usual = pipeline.usual_virtual_stages(cfg.schedule)
        table = pipeline.generate(
            cfg.schedule,
            stages=cfg.partitions,
            microbatches=cfg.microbatches,
            virtual_stages=cfg.virtual_stages or usual,
            active_microbatches=cfg.active_microbatches,
        )
        stages = list(table.rank_of)
    return {
        "partitions": cfg.partitions,
        "tensor_parallel_degree": cfg.tensor_parallel_degree,
        "placement_strategy": _STRATEGIES.get(cfg.placement_strategy, cfg.placement_strategy),
        "partitions of stages": stages,
    }
