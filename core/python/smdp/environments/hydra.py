"""Where mpiexec of MPICH runs: no variable says it, but the command line of its proxy does."""

from __future__ import annotations

import os
from pathlib import Path

_MOST_GENERATIONS = 32


def control_port(pid: int | None = None) -> str:
    """Give mpiexec's "host:port", which every proxy of a job was started with; empty if there is none.

    Args:
        pid: Process whose ancestors are looked at; default: this one.
    """
    pid = os.getpid() if pid is None else pid
    for _ in range(_MOST_GENERATIONS):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            # The name, in brackets, may hold blanks and brackets itself.
            status = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # not ours to read, or gone
            return ""
        if os.path.basename(words[0]) == "hydra_pmi_proxy" and "--control-port" in words[:-1]:
            return words[words.index("--control-port") + 1]
        pid = int(status[1])
        if pid <= 1:
            return ""
    return ""
