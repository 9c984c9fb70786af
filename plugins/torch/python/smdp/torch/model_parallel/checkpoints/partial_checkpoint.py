"""A checkpoint with one file per rank, from which the same configuration resumes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smdp import pipeline
from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.model_parallel.checkpoints.checkpoint_files import (
    part_suffix,
    read_part,
    read_user_content,
    replacing,
    shard_suffix,
)
from smdp.torch.model_parallel.checkpoints.folders import DECISION, SUFFIX, USER_CONTENT, folder_of
from smdp.torch.model_parallel.checkpoints.fp16_states import joined_states, split_states
from smdp.torch.model_parallel.checkpoints.parameter_shards import SavedShard, ShardFiles, suffix_of_shard
from smdp.torch.model_parallel.job.objects import pack
from smdp.torch.model_parallel.job.ranks import get_mp_group, rank, rdp_rank
from smdp.torch.model_parallel.job.state import state
from smdp.torch.model_parallel.training.distributed_optimizer import joined_part
from smdp.torch.model_parallel.training.shards_of_state import shared_part, slices_of
from smdp.torch.pipelining.state_dicts.state_entries import names_of
from smdp.torch.precision.mixed_precision import STATE
from smdp.torch.sharding.master_parameters import MASTER

_CONTENT = "user_content"  # the key of a user content that is not a dict, with sharded parameters
_STRATEGIES = {"cluster": "DPT", "spread": "TPD"}


def save(root: Path, tag: str, model: Any, optimizer: Any, user_content: Any) -> None:
    """Saves the parts of all ranks of this replica; all of its ranks must call this.

    If the optimizer's state is sharded, all ranks of the job must call this. The first replica then saves the
    model, and each rank its shard.

    Raises:
        ValueError: The model is not partitioned yet, or the user content cannot be pickled.
        RuntimeError: Another rank could not write.
    """
    folder = root / f"{tag}{SUFFIX}"
    has_shards = optimizer is not None and optimizer.redefined_params
    own = SavedShard(state.model, optimizer) if state.model is not None and state.model.shards else None
    group = state.running.mesh.group("world" if has_shards or own is not None else "mp")
    is_first_replica = rdp_rank() == 0

    def prepare() -> Tensor | None:
        if model is not None and not model.partitioned:
            raise ValueError(
                "[smdp] smp.save_checkpoint(partial=True) was called before the first step, which partitions"
                " the model; call it after the first step"
            )
        packed = None
        if rank() == 0:
            given = user_content if own is None else _with_shapes(user_content, own)
            packed = pack(given, "smp.save_checkpoint(user_content=...)")
        folder.mkdir(parents=True, exist_ok=True)
        if is_first_on_host():
            _remove_parts(folder)
        return packed

    content = on_every_rank(prepare, group)[0]

    def write() -> None:
        if own is not None:
            _write_shard(folder, own)
        elif model is not None and is_first_replica:
            with replacing(folder / f"model_{part_suffix()}.pt") as file:
                torch.save(model.local_state_dict(), file)
        if optimizer is not None and own is None:
            suffix = shard_suffix(rdp_rank()) if has_shards else part_suffix()
            found = optimizer.local_state_dict(gather_if_shard=False)
            if optimizer.loss_scaler is not None:
                found, extra = split_states(found, optimizer)
                with replacing(folder / f"fp16_states_{suffix}.pt") as file:
                    torch.save(extra, file)
            with replacing(folder / f"optimizer_{suffix}.pt") as file:
                torch.save(found, file)
        if is_first_on_host():
            assert content is not None
            with replacing(folder / USER_CONTENT) as file:
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
                "fp16_states": own is None and optimizer is not None and optimizer.loss_scaler is not None,
                "steps": 0 if model is None or model.pipe is None else model.pipe.steps,
                "parameters": None if own is None else own.names,
                "slices": {} if own is None else own.slices,
                "has_content": True if own is None else isinstance(user_content, dict),
            }
            with replacing(folder / DECISION) as file:
                torch.save(decision, file)

    on_every_rank(finish, group)


def load(root: Path, tag: str, *, strict: bool, with_optimizer: bool, with_moments: bool) -> Any:
    """Loads this rank's part; all ranks of a replica must call this.

    Args:
        root: The folder of all checkpoints.
        tag: The name of this one.
        strict: Whether the names must match those of the model.
        with_optimizer: Whether to load the optimizer.
        with_moments: Whether to load more of sharded state than masters and the loss scale.

    Returns:
        The user content.

    Raises:
        ValueError: There is no complete checkpoint, it belongs to another configuration, or there is no model
            or optimizer to load it into.
        RuntimeError: The same error occurred on another rank.
    """
    folder = folder_of(root, tag)
    group = state.running.mesh.group("mp" if state.cfg.sharded_data_parallel_degree == 1 else "world")
    found: dict[str, Any] = {}

    def read() -> None:
        decision = _read_decision(folder)
        # Partitions that were saved without ranks use the placement of their schedule.
        found.update((name, decision.get(name)) for name in ("partition", "ranks", "steps"))
        found["user_content"] = read_user_content(folder / USER_CONTENT)
        if decision.get("parameters") is not None:
            read_shards(decision)
            return
        shards = decision.get("shards", 0)
        if "model" in decision["contents"]:
            check_target(folder, "model")
            found["model"] = read_part(folder / f"model_{part_suffix()}.pt")
        if "optimizer" in decision["contents"] and with_optimizer:
            suffixes = [shard_suffix(each) for each in range(shards)] if shards else [part_suffix()]
            has_fp16 = decision.get("fp16_states")
            parts = [_read_optimizer(folder, each, has_fp16, is_mapped=bool(shards)) for each in suffixes]
            if shards:
                others = [shard_suffix(each, n) for n in slices_of(parts[0])[1:] for each in range(shards)]
                theirs = (_read_optimizer(folder, each, has_fp16, is_mapped=True) for each in others)
                parts += map(shared_part, theirs)
            # Without moments, masters and the loss scale are left.
            if with_moments or not shards:
                check_target(folder, "optimizer")
                found["optimizer"] = joined_part(parts) if shards else parts[0]
            elif STATE in parts[0] and state.optimizer is not None:
                found["optimizer"] = joined_part([_without_moments(each) for each in parts])

    def read_shards(decision: Mapping[str, Any]) -> None:
        content = read_part(folder / USER_CONTENT)  # shards always have one
        found["user_content"] = content if decision["has_content"] else content.get(_CONTENT)
        first = read_part(folder / f"optimizer_{suffix_of_shard(0)}.pt", is_mapped=True)
        suffixes = [suffix_of_shard(number) for number in range(first["partition_count"])]
        paths = [folder / f"optimizer_{each}.pt" for each in suffixes]
        rest = [read_part(each, is_mapped=True) for each in paths[1:]]
        saved = ShardFiles([first, *rest], decision["parameters"], paths)
        if "model" in decision["contents"]:
            check_target(folder, "model")
            found["buffers"] = read_part(folder / f"model_{suffixes[0]}.pt")["module"]
            shapes = {name: getattr(each, "shape", None) for name, each in found["buffers"].items()}
            shapes.update(pair for group in saved.names for pair in group)
            check_names_and_shapes(folder, shapes, strict=strict)
            found["shards"] = saved
        if "optimizer" in decision["contents"] and with_optimizer:
            if with_moments:
                check_target(folder, "optimizer")
                found["optimizer"] = saved.optimizer_state()
            elif state.optimizer is not None and state.optimizer.loss_scaler is not None:
                found["loss_scale"] = saved.loss_scale().get(STATE)

    def apply() -> None:
        if "shards" in found:
            for name, value in (*found["buffers"].items(), *found["shards"].parameters()):
                state.model.load_state_dict({name: value}, strict=False)
        if found.get("loss_scale") is not None:
            state.optimizer.loss_scaler.load(found["loss_scale"])
        if "model" in found:
            state.model.fix_partition(found["partition"], found["steps"], found["ranks"])
            state.model.load_state_dict(found["model"], strict=strict, same_partition_load=True)
        if "optimizer" in found:
            state.optimizer.load_state_dict(found["optimizer"])

    on_every_rank(read, group)
    on_every_rank(apply, group)
    return found["user_content"]


def _read_optimizer(folder: Path, suffix: str, has_fp16: bool | None, *, is_mapped: bool) -> dict[str, Any]:
    found: dict[str, Any] = read_part(folder / f"optimizer_{suffix}.pt", is_mapped=is_mapped)
    extra = folder / f"fp16_states_{suffix}.pt"
    # Decisions that were saved without this entry say nothing about the file.
    if not (extra.is_file() if has_fp16 is None else has_fp16):
        return found
    return joined_states(found, read_part(extra, is_mapped=is_mapped), extra)


def _without_moments(shard: Mapping[str, Any]) -> dict[str, Any]:
    masters = {index: {MASTER: each[MASTER]} for index, each in shard["state"].items() if MASTER in each}
    return {**shard, "state": masters}


def _remove_parts(folder: Path) -> None:
    """Removes an existing checkpoint with the same tag, whose files this one may not replace.

    Ranks write only after all of them have removed. The decision goes first, so that the rest is incomplete.
    """
    (folder / DECISION).unlink(missing_ok=True)
    for path in folder.glob("*.pt"):
        if re.fullmatch(r"(model|optimizer|fp16_states)(_\d+){1,3}", path.stem):
            path.unlink(missing_ok=True)  # other hosts may remove the same file of a shared disk


def _with_shapes(user_content: Any, own: SavedShard) -> dict[str, Any]:
    """Returns a user content with what is needed to read the shards without smdp."""
    given = user_content if isinstance(user_content, dict) else {_CONTENT: user_content}
    return {"buffer_names": own.buffer_names, "param_shapes": own.shapes, **given}


def _write_shard(folder: Path, own: SavedShard) -> None:
    if not own.is_first_copy:
        return
    for name, content in (("model", own.model), ("optimizer", own.optimizer)):
        with replacing(folder / f"{name}_{suffix_of_shard(own.number)}.pt") as file:
            torch.save(content, file)


def check_names_and_shapes(folder: Path, shapes: Mapping[str, Any], *, strict: bool) -> None:
    """Checks that parameters and buffers fit the model, before one of them is loaded.

    Args:
        folder: Where they are, for messages.
        shapes: The shape of each by its name, of this rank's slice; None: it is not a tensor.
        strict: Whether the names must match. Of a tied parameter, one name is enough.

    Raises:
        ValueError: A name does not match, or a shape is another one.
    """
    module = state.model.get_module()
    known = dict(module.named_parameters(remove_duplicate=False))
    here = {name: getattr(each, "shape", None) for name, each in {**known, **module.state_dict()}.items()}
    needed = [name for name, _ in state.model.named_parameters()] + [n for n in here if n not in known]
    fix = "load a checkpoint of the same model"
    if strict and (lacking := [name for name in needed if name not in shapes]):
        raise ValueError(
            f"[smdp] {folder} lacks {names_of(lacking)} of this model; {fix}, or pass strict=False"
        )
    if strict and (others := [name for name in shapes if name not in here]):
        raise ValueError(
            f"[smdp] {folder} has {names_of(others)}, which this model lacks; {fix}, or pass strict=False"
        )
    for name, saved in shapes.items():
        own = here.get(name)
        if saved is not None and own is not None and tuple(saved) != tuple(own):
            raise ValueError(
                f"[smdp] {folder} has {name!r} of shape {tuple(saved)}, but this model has {tuple(own)};"
                f" {fix}"
            )


def is_first_on_host() -> bool:
    """Returns whether this rank writes files for all ranks of its host, as hosts may have separate disks."""
    hosts = state.running.mesh.group("world").core.hosts
    neighbors = next(host for host in hosts if rank() in host)
    return rank() == min(set(neighbors) & set(get_mp_group()))


def remove_old(root: Path, tag: str, kept: int) -> None:
    """Removes all but the newest `kept` partial checkpoints; the one of this tag counts as newest."""
    own = root / f"{tag}{SUFFIX}"
    others = [
        (folder.stat().st_mtime, folder)
        for folder in root.glob(f"*{SUFFIX}")
        if folder != own and any(folder.glob(USER_CONTENT))
    ]
    for _, folder in sorted(others, reverse=True)[kept - 1 :]:
        # Other hosts may remove the same folder of a shared disk.
        shutil.rmtree(folder, ignore_errors=True)


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
    path = folder / DECISION
    if not path.is_file():
        others = sorted(each.name.removesuffix(SUFFIX) for each in folder.parent.glob(f"*{SUFFIX}"))
        raise ValueError(
            f"[smdp] {folder} contains no complete partial checkpoint, because {DECISION}, which is written"
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
