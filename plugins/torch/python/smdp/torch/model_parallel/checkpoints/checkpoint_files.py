"""`smp.save` and `smp.load`: a file for each part of the model, under SageMaker's names."""

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
from smdp.torch.model_parallel.job.ranks import mp_rank, pp_rank, pp_size, tp_rank, tp_size
from smdp.torch.model_parallel.job.state import state

File: TypeAlias = str | PathLike[str] | IO[bytes]


def save(
    obj: Any,
    f: File,
    partial: bool = True,
    pickle_module: ModuleType = pickle,
    pickle_protocol: int = 2,
    v3: bool = False,
) -> None:
    """Write an object: `f` with a suffix for this rank's part of the model, or `f` itself.

    The file is whole or not there: it takes its name once it is written. Replicas that call this too write
    the same file with the same contents; `if smp.dp_rank() == 0` lets one write.

    Args:
        obj: What torch.save() takes.
        f: A path; without `partial`, also a file that is open.
        partial: Add the suffix, `_{mp_rank}`, or with tensor parallelism `_{pp_rank}_{tp_rank}`.
        pickle_module: As for torch.save().
        pickle_protocol: As for torch.save().
        v3: Names of sharded optimizer state, which comes later.

    Raises:
        ValueError: v3, or a partial save into an open file.
        OSError: It cannot be written.
    """
    if v3:
        raise ValueError(
            "[smdp] smp.save(v3=True) names files of sharded optimizer state, which comes later; allowed:"
            " False, which smp.state.cfg.shard_optimizer_state is"
        )
    target = _path_of_part(_whole_path(f, "save")) if partial else f
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
    """Read what save() has written, this rank's part or `f` itself.

    Args:
        f: A path; without `partial`, also a file that is open. Load only what you trust: it is a pickle.
        map_location: As for torch.load().
        pickle_module: As for torch.load().
        pickle_load_args: More for torch.load(), e.g. {"weights_only": True}.
        partial: Read the file with this rank's suffix.
        back_compat: Of transformers; names have always been the same here.

    Raises:
        ValueError: The parts are those of another number of stages.
        FileNotFoundError: There is no such file.
    """
    source = f
    if partial:
        whole = _whole_path(f, "load")
        source = _path_of_part(whole)
        _check_parts(Path(whole), Path(source))
    if isinstance(source, (str, PathLike)) and not Path(source).is_file():
        raise FileNotFoundError(f"[smdp] there is no file {os.fspath(source)} to load")
    options = {"weights_only": False, **(pickle_load_args or {})}
    if pickle_module is not pickle:  # torch takes no other one with weights_only, not even its own default
        options["pickle_module"] = pickle_module
    return torch.load(source, map_location=map_location, **options)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Give a file to write, which takes its name at the end, over one that is there."""
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"[smdp] {path} cannot be written: there is no folder {path.parent}; make it first"
        )
    written = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with written.open("xb") as file:
            yield file
        written.replace(path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise


def part_suffix() -> str:
    """Give what ends the names of this rank's files: pipeline and tensor rank."""
    return f"{pp_rank()}_{tp_rank()}"


def _whole_path(f: File, call: str) -> str:
    state.check_running()
    if not isinstance(f, (str, PathLike)):
        raise ValueError(
            f"[smdp] smp.{call}() got {shown(f)} and partial = True, which needs a path, to which the part's"
            " number is added; allowed: a path, or partial=False"
        )
    return os.fspath(f)


def _path_of_part(whole: str) -> str:
    return f"{whole}_{mp_rank() if tp_size() == 1 else part_suffix()}"


def _check_parts(f: Path, own: Path) -> None:
    """Refuse files of another number of parts. A host with a disk of its own may see some only."""
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
            f"[smdp] {f.parent} holds {', '.join(sorted(found)[:8])}, parts of {f.name!r}, and this rank"
            f" needs {own.name!r} of partitions = {pp_size()} and tensor_parallel_degree = {tp_size()}; load"
            " parts with the configuration that saved them, or save with partial=False"
        )
