"""A real SLURM of one node on this machine: munged, slurmctld and slurmd of Debian, in a folder of its own.

Needs root: slurmd starts tasks as the users who ask for them. Nothing of the machine's own /etc/slurm or
/run/munge is touched, and what was started is ended by its process id.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol")

# A requeued job is held back until its credentials have expired: 20 seconds, not 120.
# Containers have no cgroups to give away and no systemd: tasks are found by /proc, and nothing is confined.
CONFIGURATION = """\
ClusterName=smdp
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=20
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdTimeout=300
SlurmdParameters=config_overrides
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def why_not() -> str | None:
    """The reason why there can be no SLURM here; None if there can."""
    if os.geteuid() != 0:
        return "slurmd needs root"
    missing = [program for program in PROGRAMS if find(program) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def find(program: str) -> str | None:
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


class Slurm:
    """The three daemons. `environ` holds what srun, sbatch and the others need to reach them.

    Args:
        folder: Where configuration, state and logs go; nobody but root may write to its parents.
        environ: Variables of the daemons and of the programs that talk to them.
        cpus: How many processors the node claims to have: more than there are, so that ranks fit.
    """

    def __init__(self, folder: Path, environ: dict[str, str], *, cpus: int = 4) -> None:
        self.folder = folder
        self.cpus = cpus
        self.started: list[subprocess.Popen[Any]] = []
        self.environ = {**environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> Slurm:
        ports = free_ports(2)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (self.folder / "munge.key").chmod(0o400)
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                host=socket.gethostname().partition(".")[0],
                folder=self.folder,
                controller_port=ports[0],
                node_port=ports[1],
                cpus=self.cpus,
            )
        )
        try:
            self._start_munge()
            self._start("slurmctld", "-D", "-f", self.environ["SLURM_CONF"])
            # -f alone is not enough: what slurmd starts reads SLURM_CONF.
            self._start("slurmd", "-D", "-f", self.environ["SLURM_CONF"])
            self._wait_for_node()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_munge(self) -> None:
        self._start(
            "munged",
            "--foreground",
            "--force",
            f"--socket={self.folder}/munge.socket",
            f"--key-file={self.folder}/munge.key",
            f"--pid-file={self.folder}/munge.pid",
            f"--log-file={self.folder}/munge.log",
            f"--seed-file={self.folder}/munge.seed",
        )
        deadline = time.monotonic() + 30
        while not (self.folder / "munge.socket").exists():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)

    def _start(self, program: str, *words: str) -> None:
        path = find(program)
        assert path is not None
        with open(self.folder / f"{program}.out", "wb") as output:
            self.started.append(
                subprocess.Popen([path, *words], env=self.environ, stdout=output, stderr=output)
            )

    def _wait_for_node(self) -> None:
        deadline = time.monotonic() + 60
        while "idle" not in (state := self.run("sinfo", "-h", "-o", "%T", check=False).stdout):
            gone = [process.args for process in self.started if process.poll() is not None]
            assert not gone and time.monotonic() < deadline, f"{gone} {state}\n{self.logs()}"
            time.sleep(0.3)

    def run(
        self, *command: str, check: bool = True, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run one of SLURM's programs to its end; standard error is in the output."""
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(command, env=self.environ, text=True, timeout=timeout_s, check=False, **pipes)
        assert not check or done.returncode == 0, f"{command}\n{done.stdout}\n{self.logs()}"
        return done

    def logs(self) -> str:
        """The ends of what the daemons wrote."""
        files = [*self.folder.glob("*.log"), *self.folder.glob("*.out")]
        return "\n".join(f"{file.name}:\n{file.read_text(errors='replace')[-2000:]}" for file in files)

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.started):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_ports(count: int) -> list[int]:
    """Ports that nobody holds at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
