"""mpirun of Open MPI 4 and 5 and mpiexec of MPICH start the script, on one host and on two."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from hosts import REASON, Hosts, forwarded
from job import TRAIN, clean, results, run

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Mpi:
    """One launcher of MPI: its program, and how it spells what all of them can."""

    name: str
    program: str
    version: str

    def start(self, ranks: int, command: list[str], **variables: str) -> list[str]:
        """The command that starts ranks of another one on this host."""
        crowded = [] if self.name == "mpich" else ["--oversubscribe"]
        return [self.program, *crowded, *self._common(variables), "-n", str(ranks), *command]

    def start_on(
        self, names: str, agent: Path, ranks: int, command: list[str], **variables: str
    ) -> list[str]:
        """The command that starts ranks on hosts, one each, through an agent in place of ssh."""
        hosts = ",".join(f"{name}:1" for name in names.split(","))
        remote = {
            "openmpi4": ["--mca", "plm_rsh_agent", str(agent), "-H", hosts],
            "openmpi5": ["--prtemca", "plm_ssh_agent", str(agent), "-H", hosts],
            "mpich": ["-launcher", "ssh", "-launcher-exec", str(agent), "-hosts", hosts],
        }[self.name]
        return [self.program, *self._common(variables), *remote, "-n", str(ranks), *command]

    def _common(self, variables: dict[str, str]) -> list[str]:
        if self.name == "mpich":
            return [word for name, value in variables.items() for word in ("-genv", name, value)]
        words = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        known = [*forwarded(), *(f"{name}={value}" for name, value in variables.items())]
        return words + [word for name in known for word in ("-x", name)]


# Where the programs are: Debian's on PATH, those of the Python index where tox has put them.
PROGRAMS = {
    "openmpi4": ("mpirun", "(Open MPI) 4."),
    "openmpi5": (os.environ.get("OPENMPI5", ""), "(Open MPI) 5."),
    "mpich": (os.environ.get("MPICH", ""), "HYDRA"),
}


@pytest.fixture(params=PROGRAMS)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    name: str = request.param
    program, version = PROGRAMS[name]
    path = shutil.which(program) if program else None
    if path is None:
        pytest.skip(f"{name} is not here (tox -e launchers installs it)")
    found = subprocess.run(
        [path, "--version"], capture_output=True, text=True, env=clean(), check=False
    ).stdout
    if version not in found:
        pytest.skip(f"{path} is not {name}: {found.partition(chr(10))[0]}")
    return Mpi(name, path, version)


on_two_hosts = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def test_one_host(mpi: Mpi, loss: str) -> None:
    done = run(mpi.start(2, TRAIN))
    assert (done.returncode, results(done.stdout)) == (0, [f"ranks=2 {loss}"]), done.stdout


@on_two_hosts
@pytest.mark.cluster
def test_two_hosts_find_each_other(mpi: Mpi, loss: str, tmp_path: Path) -> None:
    with Hosts(2, tmp_path) as hosts:
        command = mpi.start_on("node0,node1", hosts.agent, 2, TRAIN, SMDP_LOG_LEVEL="debug")
        done = hosts.run(0, command)
    assert (done.returncode, results(done.stdout)) == (0, [f"ranks=2 {loss}"]), done.stdout
    # Nobody was told where rank 0 is; that it is on no loopback interface shows that there were two hosts.
    where = re.findall(r"using .*: rank (\d) of 2, rank 0 at (node0|10\.77\.0\.1):\d+", done.stdout)
    assert sorted(rank for rank, _ in where) == ["0", "1"], done.stdout
    assert "using torchrun" not in done.stdout


@on_two_hosts
@pytest.mark.cluster
def test_a_launcher_on_a_third_host_says_what_to_add(mpi: Mpi, loss: str, tmp_path: Path) -> None:
    with Hosts(3, tmp_path) as hosts:
        # mpiexec of MPICH lets the other rank wait after one has failed.
        done = hosts.run(2, mpi.start_on("node0,node1", hosts.agent, 2, TRAIN, SMDP_INIT_TIMEOUT="20"))
        assert done.returncode != 0, done.stdout
        fix = {"mpich": "start with mpiexec -genv SMDP_MASTER_ADDR node0"}
        assert (
            "does not provide the address of rank 0 of 2; "
            + fix.get(mpi.name, "start with mpirun -x SMDP_MASTER_ADDR=node0")
        ) in done.stdout, done.stdout
        command = mpi.start_on("node0,node1", hosts.agent, 2, TRAIN, SMDP_MASTER_ADDR="node0")
        done = hosts.run(2, command)
    assert (done.returncode, results(done.stdout)) == (0, [f"ranks=2 {loss}"]), done.stdout


@on_two_hosts
@pytest.mark.cluster
@pytest.mark.skipif(shutil.which("ssh") is None, reason="ssh is not installed")
def test_a_hosts_file_with_an_unknown_name(mpi: Mpi, tmp_path: Path) -> None:
    """mpirun ends at once, and hands on what ssh says of the name."""
    begin = time.monotonic()
    with Hosts(1, tmp_path) as hosts:
        done = hosts.run(0, mpi.start_on("node0,node7", hosts.agent, 2, TRAIN))
    assert done.returncode != 0, done.stdout
    assert "Could not resolve hostname node7" in done.stdout, done.stdout
    assert time.monotonic() - begin < 60
    assert results(done.stdout) == []


@on_two_hosts
@pytest.mark.cluster
def test_an_address_that_the_other_host_does_not_know(mpi: Mpi, tmp_path: Path) -> None:
    with Hosts(2, tmp_path) as hosts:
        command = mpi.start_on("node0,node1", hosts.agent, 2, TRAIN, MASTER_ADDR="node9", MASTER_PORT="29500")
        done = hosts.run(0, command)
    assert done.returncode != 0, done.stdout
    assert "MASTER_ADDR='node9' cannot be resolved on host node" in done.stdout, done.stdout


def test_two_jobs_on_one_port(mpi: Mpi, loss: str, tmp_path: Path) -> None:
    """The second job ends with errors that name the port; the first does not notice."""
    hold = tmp_path / "hold"
    hold.touch()
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "28411"}
    waiting = [*TRAIN, "--stop-at", "5", "--hold", str(hold)]
    with subprocess.Popen(
        mpi.start(2, waiting, **variables),
        env=clean(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as first:
        assert first.stdout is not None
        try:
            seen = ""
            while seen.count("step=5") < 2:
                line = first.stdout.readline()
                assert line, seen
                seen += line
            second = run(mpi.start(2, TRAIN, **variables))
        finally:
            hold.unlink()
        rest = first.stdout.read()
    assert second.returncode != 0, second.stdout
    assert "cannot listen at MASTER_ADDR=127.0.0.1, MASTER_PORT=28411" in second.stdout, second.stdout
    assert results(second.stdout) == []
    assert (first.returncode, results(rest)) == (0, [f"ranks=2 {loss}"]), rest


def test_two_jobs_side_by_side_without_a_port(mpi: Mpi, loss: str) -> None:
    """Every job draws its port from its name: nobody has to be told."""
    both = [
        subprocess.Popen(
            mpi.start(2, TRAIN), env=clean(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(2)
    ]
    for one in both:
        output = one.communicate()[0]
        assert (one.returncode, results(output)) == (0, [f"ranks=2 {loss}"]), output
