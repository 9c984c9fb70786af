"""Where offloaded tensors go: the value of `offload=`."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import NamedTuple

from smdp import config
from smdp._shown import shown

_log = logging.getLogger(__name__)

_ALLOWED = (
    'allowed: "disk:/DIRECTORY" for a file on a local disk, "disk:/DIRECTORY?limit=50G" for a file of at most'
    ' that size, or "host" for pinned memory of the host, if the model is on a GPU'
)
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


class Target(NamedTuple):
    """A place for offloaded tensors.

    Attributes:
        directory: The directory of the file; None: pinned memory of the host.
        limit: The most bytes of the file; None: what the disk holds.
    """

    directory: Path | None
    limit: int | None = None


def target_of(offload: object) -> Target:
    """Returns the place that a value of `offload=` names, which need not exist.

    Raises:
        ValueError: The value is not valid.
    """
    if offload == "host":
        return Target(None)
    if not isinstance(offload, str) or not offload.startswith("disk:"):
        raise ValueError(f"[smdp] offload = {shown(offload)} is not valid; {_ALLOWED}")
    name, _, option = offload.removeprefix("disk:").partition("?")
    limit = config.parse_bytes(option.removeprefix("limit=")) if option.startswith("limit=") else None
    if not name.startswith("/") or (option and not limit):
        raise ValueError(f"[smdp] offload = {shown(offload)} is not valid; {_ALLOWED}")
    return Target(Path(name), limit)


def check_directory(directory: Path) -> None:
    """Checks that files can be created in a directory.

    Raises:
        ValueError: It is missing or cannot be written to.
    """
    if not directory.is_dir():
        raise ValueError(
            f"[smdp] offload: {directory} is not a directory on this host. Create it on a"
            " local disk of every host, or name another one."
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ValueError(
            f"[smdp] offload: this user cannot create files in {directory}. Change its"
            " permissions, or name another directory."
        )


def warn_of_memory(directory: Path) -> None:
    """Warns if the files of a directory are in memory, which offloading to it would not save."""
    kind = _file_system(directory)
    if kind in _IN_MEMORY:
        _log.warning(
            "[smdp] offload to %s: its file system, %s, keeps files in memory, so offloading to it saves no"
            " memory. Name a directory on a disk.",
            directory,
            kind,
        )


def _file_system(directory: Path) -> str:
    """Returns the type of the file system that holds a directory, or "" if the system does not tell."""
    real, best, kind = directory.resolve(), -1, ""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, point, found, *_ = line.split()
        mounted = Path(point.replace("\\040", " "))
        if real.is_relative_to(mounted) and len(mounted.parts) >= best:
            best, kind = len(mounted.parts), found
    return kind
