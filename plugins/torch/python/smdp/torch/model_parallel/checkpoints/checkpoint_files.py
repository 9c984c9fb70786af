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
    """Saves an object, to `f` with a suffix for this rank's part of the model, or to `f` itself.

    The file gets its name only once it is completely written. Replicas that also call this write the same
    file with the same contents; use `if smp.dp_rank() == 0` to write it once.

    Args:
        obj: The object to save, as for torch.save().
        f: A path, or with `partial=False` also an open file.
        partial: Whether to add the suffix `_{mp_rank}`, or with tensor parallelism `_{pp_rank}_{tp_rank}`.
        pickle_module: As for torch.save().
        pickle_protocol: As for torch.save().
        v3: Must be False: file names of sharded optimizer state are not supported yet.

    Raises:
        ValueError: `v3` is set, or `partial` is set and `f` is an open file.
        OSError: The file cannot be written.
    """
    if v3:
        raise ValueError(
            "[smdp] smp.save(v3=True) uses the file names of sharded optimizer state, which smdp does not"
            " support yet; pass v3=smp.state.cfg.shard_optimizer_state, which is False"
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
    """Loads what save() has written, from this rank's part or from `f` itself.

    Args:
        f: A path, or with `partial=False` also an open file. Load only files that you trust, because they are
            pickles.
        map_location: As for torch.load().
        pickle_module: As for torch.load().
        pickle_load_args: Further arguments for torch.load(), such as {"weights_only": True}.
        partial: Whether to load the file with this rank's suffix.
        back_compat: Ignored. Accepted because transformers passes it; file names are always the same.

    Raises:
        ValueError: The parts belong to another number of stages.
        FileNotFoundError: The file does not exist.
    """
    source = f
    if partial:
        whole = _whole_path(f, "load")
        source = _path_of_part(whole)
        _check_parts(Path(whole), Path(source))
    if isinstance(source, (str, PathLike)) and not Path(source).is_file():
        raise FileNotFoundError(f"[smdp] there is no file {os.fspath(source)} to load")
    options = {"weights_only": False, **(pickle_load_args or {})}
    if pickle_module is not pickle:  # with weights_only torch rejects any pickle_module, even its own default
        options["pickle_module"] = pickle_module
    return torch.load(source, map_location=map_location, **options)


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


def part_suffix() -> str:
    """Returns the suffix of this rank's file names, which contains the pipeline rank and the tensor rank."""
    return f"{pp_rank()}_{tp_rank()}"


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
