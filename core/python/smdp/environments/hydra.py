"""Finds the host of MPICH's mpiexec, which is not in any variable, from the command line of its proxy."""

from __future__ import annotations

import os
from pathlib import Path

_MOST_GENERATIONS = 32


def control_port(pid: int | None = None) -> str:
    """Returns the "host:port" that mpiexec passes to every proxy of a job, or "" outside a proxy.

    Args:
        pid: Process whose ancestors are searched. Default: this process.
    """
    pid = os.getpid() if pid is None else pid
    for _ in range(_MOST_GENERATIONS):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            # The process name, in parentheses, may itself contain spaces and parentheses.
            status = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # not permitted to read, or the process has ended
            return ""
        if os.path.basename(words[0]) == "hydra_pmi_proxy" and "--control-port" in words[:-1]:
            return words[words.index("--control-port") + 1]
        pid = int(status[1])
        if pid <= 1:
            return ""
    return ""
