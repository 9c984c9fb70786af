"""Two containers on a network of their own: mpirun in one starts ranks in the other, through sshd."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from buildah import ROOT
from container import Container
from image import Image

sys.path.insert(0, str(ROOT / "tests" / "cluster"))
from network import Cluster, why_not

REASON = why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]
MAKE = Callable[..., Container]
PROGRAM = "import smdp, numpy; x = numpy.ones(3, numpy.float32); smdp.init().all_reduce(x); print(x)"
MPIRUN = ["mpirun", "-H", "node0,node1", "-x", "PATH", "python3", "-c", PROGRAM]


def make_keys(folder: Path, name: str) -> Path:
    """A job's key pair, in a folder as it is mounted: of the user who reads it."""
    folder.mkdir()
    command = ["ssh-keygen", "-q", "-t", name.removeprefix("id_"), "-N", "", "-f", str(folder / name)]
    subprocess.run(command, check=True)
    subprocess.run(["chown", "-R", "1000:1000", str(folder)], check=True)
    return folder


@contextmanager
def waiting_host(container: Container, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A container that runs sshd until it is no longer needed."""
    process = container.start(*command)
    try:
        assert process.stdout is not None
        assert "Server listening on" in process.stdout.readline()
        yield process
    finally:
        container.kill(process)


def host(cluster: Cluster, number: int, image: Image, containers: MAKE, keys: Path) -> Container:
    prefix = ("ip", "netns", "exec", cluster.name(number))
    volumes = {"/home/mpiuser/.ssh": keys}
    return containers(image, prefix=prefix, hostname=f"node{number}", volumes=volumes)


def test_mpirun_over_two_containers(image: Image, containers: MAKE, tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys", "id_ed25519")
    with Cluster(2, names=True) as cluster, waiting_host(host(cluster, 1, image, containers, keys), "sshd"):
        code, output = host(cluster, 0, image, containers, keys).run(*MPIRUN)
    assert code == 0, output
    assert output.count("[2. 2. 2.]") == 2, output


def test_sshd_beside_a_command(image: Image, containers: MAKE, tmp_path: Path) -> None:
    """`--sshd COMMAND`: sshd is there for mpirun, the command gets the signal and gives the exit code."""
    keys = make_keys(tmp_path / "keys", "id_ed25519")
    with Cluster(2, names=True) as cluster:
        process = host(cluster, 1, image, containers, keys).start("--sshd", "sleep", "600")
        try:
            code, output = host(cluster, 0, image, containers, keys).run("--sshd", *MPIRUN)
            assert code == 0, output
            assert output.count("[2. 2. 2.]") == 2, output
            Container.signal(process, signal.SIGTERM)
            assert process.wait(timeout=30) == 128 + signal.SIGTERM
        finally:
            Container.kill(process)


def test_a_key_is_made_at_start(image: Image, containers: MAKE) -> None:
    """Without a mounted one: a warning, and who is in the container can log in to it."""
    login = "ssh localhost 'id -un; command -v mpirun python3'"
    keys = "stat -c '%a %U' ~/.ssh/id_ed25519; ls /etc/ssh/ssh_host_* 2>/dev/null"
    with Cluster(1, names=True) as cluster:
        container = containers(image, prefix=("ip", "netns", "exec", cluster.name(0)), hostname="node0")
        code, output = container.run("--sshd", "bash", "-c", f"{login} && {{ {keys}; exit 7; }}")
    assert code == 7, output
    warning, *told = output.splitlines()
    assert warning.startswith(
        "[smdp] warning: no key is mounted at /home/mpiuser/.ssh, so this container created"
    )
    assert told == ["mpiuser", "/usr/bin/mpirun", "/opt/smdp/venv/bin/python3", "600 mpiuser"]


def test_a_container_of_another_job_is_not_trusted(image: Image, containers: MAKE, tmp_path: Path) -> None:
    """Its sshd shows another key, so ssh does not even try to log in."""
    ours, theirs = make_keys(tmp_path / "ours", "id_ed25519"), make_keys(tmp_path / "theirs", "id_ed25519")
    with Cluster(2, names=True) as cluster, waiting_host(host(cluster, 1, image, containers, theirs), "sshd"):
        code, output = host(cluster, 0, image, containers, ours).run(*MPIRUN)
    assert code != 0
    assert "Host key verification failed" in output or "REMOTE HOST IDENTIFICATION" in output, output


def test_sshd_as_kubeflow_starts_it(image: Image, containers: MAKE, tmp_path: Path) -> None:
    """Its runtime for MPI starts sshd itself, past the entry point, on an RSA key that it mounts."""
    keys = make_keys(tmp_path / "keys", "id_rsa")
    shutil.copy(keys / "id_rsa.pub", keys / "authorized_keys")
    command = ("/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config")
    with Cluster(2, names=True) as cluster, waiting_host(host(cluster, 1, image, containers, keys), *command):
        launcher = host(cluster, 0, image, containers, keys)
        code, output = launcher.run(*MPIRUN, environ={"OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10"})
    assert code == 0, output
    assert len(re.findall(r"\[2\. 2\. 2\.\]", output)) == 2, output
