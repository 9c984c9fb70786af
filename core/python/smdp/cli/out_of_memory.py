"""Whether the kernel has ended processes here because memory ran out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from smdp.cli import system


class OutOfMemory:
    """Compares the kernel's count of such processes with that of the start.

    Ranks run in the cgroup of the process that starts them, where other processes may run as well. Without a
    cgroup that counts, the count is that of the whole machine, and most of it has nothing to do with ranks.
    """

    def __init__(self) -> None:
        self._before = kills()

    def explained(self, *, is_killed: bool) -> str:
        """Returns a sentence about what was ended since it was said last, with the limit, or an empty text.

        Args:
            is_killed: A rank ended by SIGKILL, which this process did not send. Otherwise the machine's count
                says nothing about it.
        """
        found = kills()
        count = found.count - self._before.count
        if count <= 0 or (found.is_of_machine and not is_killed):
            return ""
        self._before = found
        processes = "a process" if count == 1 else f"{count} processes"
        where = "on this machine" if found.is_of_machine else "here"
        limit = system.memory_limit()
        memory = f"the machine has {_shown(system.total_memory() or 0)}"
        cure = "start fewer ranks on it"
        if limit is not None:
            memory = f"the limit of its cgroup is {_shown(limit.bytes)} ({limit.file})"
            cure = "raise the limit, or start fewer ranks on this machine"
        return (
            f"the kernel's OOM killer has ended {processes} {where} because memory ran out: {memory}; {cure}"
        )


@dataclass(frozen=True)
class Kills:
    """How many processes the kernel has ended because memory ran out.

    Attributes:
        count: In this process's cgroup, since that was made.
        is_of_machine: On the whole machine instead, because this process is in no cgroup that counts them.
    """

    count: int
    is_of_machine: bool


def kills() -> Kills:
    """Returns the kernel's count."""
    for directory in system.cgroup_directories("memory"):
        for name in ("memory.events", "memory.oom_control"):  # of version 2 and version 1
            count = _counted(directory / name)
            if count is not None:
                return Kills(count, is_of_machine=False)
    return Kills(_counted(Path("/proc/vmstat")) or 0, is_of_machine=True)


def _counted(file: Path) -> int | None:
    for line in (system.read_text(file) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return None


def _shown(count: int) -> str:
    return f"{count / 2**30:.4g} GiB" if count >= 2**30 else f"{count / 2**20:.4g} MiB"
