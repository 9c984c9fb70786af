"""What files of the kernel say about the limits of this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Without a limit, version 1 of cgroups reports a larger number than this.
_NO_LIMIT = 1 << 60


def read_text(path: str | Path) -> str | None:
    """Returns a file's text without surrounding whitespace, or None if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return None


class MemoryLimit(NamedTuple):
    """The tightest limit of memory that applies to this process, and the file that holds it."""

    bytes: int
    file: Path


def memory_limit() -> MemoryLimit | None:
    """Returns the smallest limit of this process's cgroup and its parents, or None if they set none."""
    return min(_memory_limits(), default=None)


def _memory_limits() -> Iterator[MemoryLimit]:
    for directory in cgroup_directories("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):  # cgroup versions 2 and 1
            text = read_text(directory / name)
            if text and text.isdecimal() and int(text) < _NO_LIMIT:
                yield MemoryLimit(int(text), directory / name)


def cgroup_directories(controller: str) -> list[Path]:
    """Returns the directories of this process's cgroups and their parents, the innermost first.

    Args:
        controller: The controller to look for in version 1, "cpu" or "memory". Version 2 has one hierarchy.
    """
    directories = []
    for line in (read_text("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        root = Path("/sys/fs/cgroup") / (controllers and controller)
        inner = root / path.lstrip("/")
        while inner != root and root in inner.parents:
            directories.append(inner)
            inner = inner.parent
        directories.append(root)
    return directories


def available_memory() -> int | None:
    """Returns the bytes that this host's processes can still use, within its cgroups' limits, or None.

    Pages of files that the kernel can drop count as available.
    """
    found = [number * 1024 for number in _numbers(read_text("/proc/meminfo"), "MemAvailable:")]
    for limit in _memory_limits():
        directory = limit.file.parent
        # Cgroup versions 2 and 1.
        for name, inactive in (
            ("memory.current", "inactive_file"),
            ("memory.usage_in_bytes", "total_inactive_file"),
        ):
            used = read_text(directory / name)
            if used and used.isdecimal():
                droppable = _numbers(read_text(directory / "memory.stat"), inactive) or [0]
                found.append(max(0, limit.bytes - int(used) + droppable[0]))
    return min(found, default=None)


def _numbers(text: str | None, name: str) -> list[int]:
    lines = [line.split() for line in (text or "").splitlines()]
    return [int(line[1]) for line in lines if len(line) > 1 and line[0] == name and line[1].isdecimal()]
