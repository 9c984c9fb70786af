"""The manifests of containers/kubernetes start the unchanged script, and it comes to the right result.

The pods' environment is simulated, see pods.py; all that runs in it is real: two network namespaces are two
pods, with the names that a headless service gives them, and the manifest's own command runs in each. Where a
pod's user is 1000, here it is root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("yaml")
from job import SCRIPT
from network import Cluster, why_not
from pods import Pod, host_file, make_pods, read

REASON = why_not()
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(300),
]

SECRET = "f3a9c1" * 8
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Kubernetes:
    """Pods in network namespaces of their own."""

    def __init__(self, pods: list[Pod], folder: Path, script: str | None = None) -> None:
        self.pods = pods
        self.folder = folder
        self.cluster = Cluster(len(pods), names=[pod.names for pod in pods])
        self.contents = {
            ("configMap", "train-script"): {"train.py": script or Path(SCRIPT).read_text()},
            ("secret", "smdp-secret"): {"secret": SECRET},
        }

    def __enter__(self) -> Kubernetes:
        self.cluster.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.cluster.__exit__()

    def start(self, index: int, **environ: str) -> subprocess.Popen[str]:
        pod = self.pods[index].place(self.folder / str(index), self.contents)
        variables = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            **pod.environ,
            **environ,
        }
        # A container has a host name of its own.
        command = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', pod.name, *pod.command]
        return self.cluster.start(index, command, variables)

    def run(self, **environ: str) -> tuple[list[str], list[int]]:
        """Start all pods, and give what each printed and its exit code when all have ended."""
        ends = []
        for index, pod in enumerate(self.pods):
            process = self.start(index, **environ)
            if not pod.is_server:
                ends.append(process)
            elif process.stdout is not None:  # others are started when it is ready
                assert any("Server listening on" in line for line in process.stdout)
        outputs = [process.communicate(timeout=200)[0] for process in ends]
        return outputs, [process.returncode for process in ends]


@pytest.fixture(scope="module")
def expected(loss: str) -> str:
    """What rank 0 of two prints."""
    return f"ranks=2 {loss}"


def check(result: tuple[list[str], list[int]], expected: str) -> None:
    outputs, codes = result
    assert codes == [0] * len(codes), "\n".join(outputs)
    assert expected in outputs[0]
    assert not any("loss=" in output for output in outputs[1:])


def test_train_job_over_torchrun(tmp_path: Path, expected: str) -> None:
    pods = make_pods(read("torch_train_job.yaml", "torch_runtime.yaml"))
    assert [pod.address for pod in pods] == ["digits-node-0-0.digits", "digits-node-0-1.digits"]
    with Kubernetes(pods, tmp_path) as kubernetes:
        check(kubernetes.run(), expected)


@pytest.mark.parametrize(
    ("file", "address"),
    [("job_set.yaml", "digits-worker-0-0.digits"), ("indexed_job.yaml", "digits-0.digits")],
)
def test_one_rank_per_pod(file: str, address: str, tmp_path: Path, expected: str) -> None:
    pods = make_pods(read(file))
    assert pods[0].address == address
    with Kubernetes(pods, tmp_path) as kubernetes:
        outputs, codes = kubernetes.run(SMDP_LOG_LEVEL="debug")
    check((outputs, codes), expected)
    # It says where the ranks come from.
    assert all(f"rank {rank} of 2, rank 0 at {address}" in outputs[rank] for rank in range(2)), outputs


def train_job(folder: Path, script: str | None = None) -> Kubernetes:
    """What Kubeflow Trainer makes of the job: the pods, a key pair and a host file."""
    documents = read("mpi_train_job.yaml", "mpi_runtime.yaml")
    pods = make_pods(documents)
    assert [pod.name for pod in pods] == ["digits-mpi-node-0-0", "digits-mpi-launcher-0-0"]
    private, public = make_keys(folder, "ecdsa")
    kubernetes = Kubernetes(pods, folder, script)
    kubernetes.contents |= {
        ("secret", "digits-mpi-mpi-ssh-auth"): {
            "id_rsa": private,
            "id_rsa.pub": public,
            "authorized_keys": public,
        },
        ("configMap", "digits-mpi-mpi-hostfile"): {"hostfile": host_file(pods, documents[0])},
    }
    return kubernetes


def job_set(folder: Path, script: str | None = None) -> Kubernetes:
    """The JobSet of mpirun, with the host file that is part of it and the keys that its first lines make."""
    documents = read("mpi_job_set.yaml")
    pods = make_pods(documents)
    assert [pod.name for pod in pods] == ["digits-mpi-worker-0-0", "digits-mpi-launcher-0-0"]
    hosts = documents[0]["data"]["hostfile"]
    assert sorted(line.split()[0] for line in hosts.splitlines()) == sorted(pod.address for pod in pods)
    private, public = make_keys(folder, "ed25519")
    kubernetes = Kubernetes(pods, folder, script)
    kubernetes.contents |= {
        ("secret", "digits-mpi-keys"): {"id_ed25519": private, "authorized_keys": public},
        ("configMap", documents[0]["metadata"]["name"]): {"hostfile": hosts},
    }
    return kubernetes


def make_keys(folder: Path, kind: str) -> tuple[str, str]:
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(key)], check=True)
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)  # where sshd is root it wants it
    return key.read_text(), key.with_suffix(".pub").read_text()


needs_mpi = pytest.mark.skipif(
    not (shutil.which("mpirun") and os.path.exists("/usr/sbin/sshd")), reason="no mpirun or no sshd"
)


@needs_mpi
@pytest.mark.parametrize("mpi", [train_job, job_set])
def test_mpirun(mpi: Callable[[Path], Kubernetes], tmp_path: Path, expected: str) -> None:
    with mpi(tmp_path) as kubernetes:
        check(kubernetes.run(**AS_ROOT), expected)


@needs_mpi
@pytest.mark.parametrize("mpi", [train_job, job_set])
def test_exit_code_75_reaches_the_policy_through_mpirun(
    mpi: Callable[[Path, str], Kubernetes], tmp_path: Path
) -> None:
    script = "import os, sys\nsys.exit(75 if os.environ['OMPI_COMM_WORLD_RANK'] == '1' else 0)\n"
    with mpi(tmp_path, script) as kubernetes:
        assert kubernetes.run(**AS_ROOT)[1] == [75]


def test_exit_code_75_does_not_pass_torchrun(tmp_path: Path) -> None:
    # Therefore torch_runtime.yaml has no rule for it, and docs/kubernetes.md says so.
    pods = make_pods(read("torch_train_job.yaml", "torch_runtime.yaml"))
    with Kubernetes(pods, tmp_path, "import sys\nsys.exit(75)\n") as kubernetes:
        assert kubernetes.run()[1] == [1, 1]


def test_python_where_torchrun_was_meant(tmp_path: Path, expected: str) -> None:
    documents = read("torch_train_job.yaml", "torch_runtime.yaml")
    documents[0]["spec"]["trainer"] |= {"command": ["python"], "numProcPerNode": 4}
    with Kubernetes(make_pods(documents), tmp_path) as kubernetes:
        outputs, codes = kubernetes.run()
    check((outputs, codes), expected)
    warning = "PET_NPROC_PER_NODE asks for 4 ranks per pod, but the script was started without torchrun"
    assert [output.count(warning) for output in outputs] == [1, 0], outputs


def test_a_name_that_comes_late_is_waited_for(tmp_path: Path, expected: str) -> None:
    pods = make_pods(read("job_set.yaml"))
    with Kubernetes(pods, tmp_path) as kubernetes:
        kubernetes.cluster.publish(1)  # pod 1 knows itself only
        second = kubernetes.start(1)
        assert second.stdout is not None
        line = next(line for line in second.stdout if "digits-worker-0-0.digits" in line)
        assert "cannot be resolved on host digits-worker-0-1" in line
        first = kubernetes.start(0)
        time.sleep(2)
        kubernetes.cluster.publish(1, 0)
        outputs = [first.communicate(timeout=200)[0], second.communicate(timeout=200)[0]]
    check((outputs, [first.returncode, second.returncode]), expected)


def test_a_name_that_never_comes_is_an_error_that_names_it(tmp_path: Path) -> None:
    pods = make_pods(read("job_set.yaml"))
    with Kubernetes(pods, tmp_path) as kubernetes:
        kubernetes.cluster.publish(1)
        process = kubernetes.start(1, SMDP_INIT_TIMEOUT="3")
        output = process.communicate(timeout=200)[0]
    assert process.returncode == 1
    assert "ConfigError: [smdp] rank 0's host 'digits-worker-0-0.digits" in output
    assert "cannot be resolved on host digits-worker-0-1 after 3 s" in output


def test_an_index_without_a_size_is_an_error(tmp_path: Path) -> None:
    pod = make_pods(read("job_set.yaml"))[1]
    environ = {name: value for name, value in pod.environ.items() if name != "SMDP_WORLD_SIZE"}
    with Kubernetes([replace(pod, environ=environ)], tmp_path) as kubernetes:
        (output,), (code,) = kubernetes.run()
    assert code == 1
    assert "JOB_COMPLETION_INDEX='1' is set but SMDP_WORLD_SIZE is not" in output
    assert 'env: [{name: SMDP_WORLD_SIZE, value: "<completions>"}]' in output


def test_another_secret_is_kept_out(tmp_path: Path) -> None:
    pods = make_pods(read("job_set.yaml"))
    with Kubernetes(pods, tmp_path) as kubernetes:
        first = kubernetes.start(0, SMDP_INIT_TIMEOUT="20")
        kubernetes.contents["secret", "smdp-secret"] = {"secret": "another one"}
        second = kubernetes.start(1, SMDP_INIT_TIMEOUT="20")
        outputs = [process.communicate(timeout=200)[0] for process in (first, second)]
    assert first.returncode == second.returncode == 1
    assert "secret" in outputs[1]
    assert not any(SECRET in output for output in outputs)
