"""Two hosts for mpirun: namespaces with names of their own, and a program that reaches them as ssh would."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

from job import TIMEOUT_S, clean
from network import Cluster, why_not

REASON = why_not()

# Called as ssh is: options, a host, a command. Like ssh, it hands no variable of this side on.
# What is none of our hosts is left to ssh itself.
_AGENT = """\
#!/usr/bin/env bash
set -euo pipefail
while [[ $1 == -* ]]; do shift; done
host=$1
shift
case $host in
{cases}
  *) exec ssh -o BatchMode=yes "$host" "$@" ;;
esac
exec env -i PATH="$PATH" HOME="$HOME" ip netns exec "$space" \\
  unshare --uts bash -c 'hostname "$0" && exec bash -c "$1"' "$host" "$*"
"""


class Hosts(Cluster):
    """Hosts node0, node1, ...; `agent` is the program to start others by.

    Args:
        hosts: How many.
        folder: For the agent.
    """

    def __init__(self, hosts: int, folder: Path) -> None:
        super().__init__(hosts, names=True)
        self.agent = folder / "agent"
        cases = [f"  node{host} | {self.address(host)}) space={self.name(host)} ;;" for host in range(hosts)]
        self.agent.write_text(_AGENT.format(cases="\n".join(cases)))
        self.agent.chmod(0o755)

    def on(self, host: int, command: list[str]) -> list[str]:
        """The command that runs another one on a host, under the host's own name."""
        inner = f"hostname node{host} && exec {shlex.join(command)}"
        return ["ip", "netns", "exec", self.name(host), "unshare", "--uts", "bash", "-c", inner]

    def run(self, host: int, command: list[str], **more: str) -> subprocess.CompletedProcess[str]:
        """Run a launcher on a host to its end; standard error is in the output."""
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.run(
            self.on(host, command), env=clean(**more), text=True, timeout=TIMEOUT_S, check=False, **pipes
        )


def forwarded() -> list[str]:
    """Names of variables by which this Python finds its packages: ssh hands none on."""
    return [name for name in os.environ if re.fullmatch(r"PYTHONPATH|OMP_NUM_THREADS|SMDP_.*", name)]
