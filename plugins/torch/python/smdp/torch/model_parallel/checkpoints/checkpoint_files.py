"""`smp.save` and `smp.load`: one file for each part of the model, with SageMaker's file names."""

from __future__ import annotations

import contextlib
import glob
import os
import pickle
import re
import secrets
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import IO, Any, TypeAlias

import torch

from smdp._shown import shown
from smdp.torch.model_parallel.job.ranks import mp_rank, pp_rank, pp_size, rdp_rank, tp_rank, tp_size
from smdp.torch.model_parallel.job.state import state
from smdp.torch.model_parallel.training.distributed_optimizer import joined_part
from smdp.torch.model_parallel.training.shards_of_state import is_shard, shared_part, slices_of

File: TypeAlias = str | PathLike[str] | IO[bytes]


def save(
    obj: Any,
    f: File,
    partial: bool = True,
    pickle_module: ModuleType = pickle,
    pickle_protocol: int = 2,
    v3: bool = False,
) -> None:
    """Saves an object, to `f` with a suffix for this rank's part of the model, or to `f` itself.

    The file gets its name only once it is completely written. Replicas that also call this write the same
    file with the same contents; use `if smp.dp_rank() == 0` to write it once.

    Args:
        obj: The object to save, as for torch.save().
        f: A path, or with `partial=False` also an open file.
        partial: Whether to add the suffix `_{mp_rank}`, or with tensor parallelism `_{pp_rank}_{tp_rank}`.
        pickle_module: As for torch.save().
        pickle_protocol: As for torch.save().
        v3: Whether `partial` adds the suffix `_{pp_rank}_{tp_rank}_{rdp_rank}` instead, for sharded optimizer
            state, of which every replica saves its own shard.

    Raises:
        ValueError: `partial` is set and `f` is an open file.
        OSError: The file cannot be written.
    """
    target: Any = f
    if partial:
        whole = _whole_path(f, "save")
        target = f"{whole}_{shard_suffix(rdp_rank())}" if v3 else _path_of_part(whole)
    options = {"pickle_module": pickle_module, "pickle_protocol": pickle_protocol}
    if not isinstance(target, (str, PathLike)):
        torch.save(obj, target, **options)
        return
    with replacing(Path(target)) as file:
        torch.save(obj, file, **options)


def load(
    f: File,
    map_location: Any = None,
    pickle_module: ModuleType = pickle,
    pickle_load_args: Mapping[str, Any] | None = None,
    partial: bool = True,
    back_compat: bool = False,
) -> Any:
    """Loads what save() has written, from this rank's part or from `f` itself.

    Args:
        f: A path, or with `partial=False` also an open file. Load only files that you trust, because they are
            pickles.
        map_location: As for torch.load().
        pickle_module: As for torch.load().
        pickle_load_args: Further arguments for torch.load(), such as {"weights_only": True}.
        partial: Whether to load the file with this rank's suffix. If only the shards of optimizer state were
            saved, the state that they form together is loaded, which any number of replicas can use.
        back_compat: Ignored. Accepted because transformers passes it; file names are always the same.

    Raises:
        ValueError: The parts belong to another number of stages.
        FileNotFoundError: The file does not exist.
    """
    source = f
    if partial:
        whole = _whole_path(f, "load")
        source = _path_of_part(whole)
        if not Path(source).exists() and (shards := _shards(Path(whole))):
            found = [load(each, map_location, partial=False) for each in shards]
            if not all(map(is_shard, found)):
                return found[rdp_rank() if rdp_rank() < len(found) else 0]
            others = [path for number in slices_of(found[0])[1:] for path in _shards(Path(whole), number)]
            found += [shared_part(load(each, map_location, partial=False)) for each in others]
            return joined_part(found)
        _check_parts(Path(whole), Path(source))
    if isinstance(source, (str, PathLike)) and not Path(source).is_file():
        raise FileNotFoundError(f"[smdp] there is no file {os.fspath(source)} to load")
    options = {"weights_only": False, **(pickle_load_args or {})}
    if pickle_module is not pickle:  # with weights_only torch rejects any pickle_module, even its own default
        options["pickle_module"] = pickle_module
    return torch.load(source, map_location=map_location, **options)


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


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yields a file for writing that replaces `path` when the context ends without an error."""
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"[smdp] {path} cannot be written, because there is no folder {path.parent}; create it first"
        )
    written = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with written.open("xb") as file:
            yield file
        written.replace(path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise


def part_suffix(number: int | None = None) -> str:
    """Returns the suffix of this rank's file names, which contains the pipeline rank and the tensor rank.

    Args:
        number: The tensor rank, if it is not that of this rank.
    """
    return f"{pp_rank()}_{tp_rank() if number is None else number}"


def shard_suffix(replica: int, number: int | None = None) -> str:
    """Returns the suffix of a file with the optimizer state that a replica has of this rank's parameters.

    Args:
        replica: The number of the replica.
        number: The tensor rank, if it is not that of this rank.
    """
    return f"{part_suffix(number)}_{replica}"


def _shards(f: Path, number: int | None = None) -> list[Path]:
    """Returns the files with shards of this rank's part, or of that of another tensor rank."""
    found = list(f.parent.glob(f"{glob.escape(f.name)}_{part_suffix(number)}_*"))
    numbered = {int(last): path for path in found if (last := path.name.rpartition("_")[2]).isdigit()}
    return [numbered[replica] for replica in sorted(numbered)]


def _whole_path(f: File, call: str) -> str:
    state.check_running()
    if not isinstance(f, (str, PathLike)):
        raise ValueError(
            f"[smdp] smp.{call}() got {shown(f)} and partial=True, which needs a path to add the part's"
            " number to; pass a path or partial=False"
        )
    return os.fspath(f)


def _path_of_part(whole: str) -> str:
    return f"{whole}_{mp_rank() if tp_size() == 1 else part_suffix()}"


def _check_parts(f: Path, own: Path) -> None:
    """Raises if files belong to another number of parts. A host with its own disk may see only some files."""
    pattern = re.compile(re.escape(f.name) + r"_(\d+)(?:_(\d+))?")
    found = {
        path.name: match
        for path in f.parent.glob(f"{glob.escape(f.name)}_*")
        if (match := pattern.fullmatch(path.name))
    }
    has_slices = tp_size() > 1
    is_other = any(
        (match[2] is not None) != has_slices
        or int(match[1]) >= pp_size()
        or (has_slices and int(match[2]) >= tp_size())
        for match in found.values()
    )
    if is_other or (found and own.name not in found):
        raise ValueError(
            f"[smdp] {f.parent} contains {', '.join(sorted(found)[:8])}, which are parts of {f.name!r}, but"
            f" this rank needs {own.name!r}, with partitions = {pp_size()} and tensor_parallel_degree ="
            f" {tp_size()}; load parts with the configuration that saved them, or save with partial=False"
        )
