"""Detects processes that the kernel's OOM killer has ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from smdp import _kernel_files
from smdp.cli import system


class OutOfMemory:
    """Compares the kernel's count of OOM kills with the count at the start.

    Ranks run in the cgroup of the process that starts them, where other processes may run as well. If no
    cgroup counts OOM kills, the machine's count is used, most of which may be unrelated to the ranks.
    """

    def __init__(self) -> None:
        self._before = kills()

    def explained(self, *, is_killed: bool) -> str:
        """Returns a sentence about OOM kills since the last call, with the memory limit; empty if none.

        Args:
            is_killed: Whether a rank was ended by a SIGKILL that this process did not send. Otherwise, the
                machine's count is ignored.
        """
        found = kills()
        count = found.count - self._before.count
        if count <= 0 or (found.is_of_machine and not is_killed):
            return ""
        self._before = found
        processes = "a process" if count == 1 else f"{count} processes"
        where = "on this machine" if found.is_of_machine else "here"
        limit = _kernel_files.memory_limit()
        memory = f"the machine has {_shown(system.total_memory() or 0)}"
        cure = "start fewer ranks on it"
        if limit is not None:
            memory = f"the limit of its cgroup is {_shown(limit.bytes)} ({limit.file})"
            cure = "raise the limit, or start fewer ranks on this machine"
        return f"the kernel's OOM killer ended {processes} {where} because memory ran out: {memory}; {cure}"


@dataclass(frozen=True)
class Kills:
    """The number of processes that the kernel's OOM killer has ended.

    Attributes:
        count: Number of processes, in this process's cgroup since its creation or on the whole machine.
        is_of_machine: Whether the count is for the whole machine, because no cgroup counts OOM kills.
    """

    count: int
    is_of_machine: bool


def kills() -> Kills:
    """Returns the kernel's count of OOM kills."""
    for directory in _kernel_files.cgroup_directories("memory"):
        for name in ("memory.events", "memory.oom_control"):  # cgroup versions 2 and 1
            count = _counted(directory / name)
            if count is not None:
                return Kills(count, is_of_machine=False)
    return Kills(_counted(Path("/proc/vmstat")) or 0, is_of_machine=True)


def _counted(file: Path) -> int | None:
    for line in (_kernel_files.read_text(file) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return None


def _shown(count: int) -> str:
    return f"{count / 2**30:.4g} GiB" if count >= 2**30 else f"{count / 2**20:.4g} MiB"
