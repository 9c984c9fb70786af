"""Whether the kernel has ended processes here for want of memory."""

from __future__ import annotations

from pathlib import Path

from smdp.cli import system


class OutOfMemory:
    """Compares the kernel's count of such processes with that of the start.

    Ranks run in the cgroup of the process that starts them. Other processes may run there as well.
    """

    def __init__(self) -> None:
        self._before = kills()

    def explained(self) -> str:
        """Returns a sentence about what was ended since the last call, with the limit, or an empty text."""
        before, self._before = self._before, kills()
        count = self._before - before
        if count <= 0:
            return ""
        processes = "a process" if count == 1 else f"{count} processes"
        limit = system.memory_limit()
        memory = f"the machine has {_shown(system.total_memory() or 0)}"
        cure = "start fewer ranks on it"
        if limit is not None:
            memory = f"the limit of its cgroup is {_shown(limit.bytes)} ({limit.file})"
            cure = "raise the limit, or start fewer ranks on this machine"
        return f"the kernel's OOM killer has ended {processes} here for want of memory: {memory}; {cure}"


def kills() -> int:
    """Returns how many processes of this cgroup the kernel has ended so, since the cgroup was made.

    Where this process is in no cgroup that counts them, that of the whole machine.
    """
    for directory in system.cgroup_directories("memory"):
        for name in ("memory.events", "memory.oom_control"):  # of version 2 and version 1
            count = _counted(directory / name)
            if count is not None:
                return count
    return _counted(Path("/proc/vmstat")) or 0


def _counted(file: Path) -> int | None:
    for line in (system.read_text(file) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return None


def _shown(count: int) -> str:
    return f"{count / 2**30:.4g} GiB" if count >= 2**30 else f"{count / 2**20:.4g} MiB"
