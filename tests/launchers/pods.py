"""What Kubeflow Trainer, JobSet and Kubernetes make of a manifest: pods with a name, a command and variables.

Written after the controllers' documentation and what they are seen to set; a cluster is not at hand.
"""

from __future__ import annotations

import copy
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "containers" / "kubernetes"
INDEX_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
TRAINER_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
HOST_FILE = "/etc/mpi/hostfile"


@dataclass
class Pod:
    """A pod that waits to be started.

    Attributes:
        name: Its host name.
        subdomain: Of its headless service: others reach it as <name>.<subdomain>.
        command: With its arguments.
        environ: Variables of its container.
        mounts: What lies at a path: ("secret" or "configMap", its name, mode of the files).
        is_server: Whether it has no end of its own.
    """

    name: str
    subdomain: str
    command: list[str]
    environ: dict[str, str]
    mounts: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    is_server: bool = False

    @property
    def address(self) -> str:
        return f"{self.name}.{self.subdomain}"

    @property
    def names(self) -> list[str]:
        """All under which it is found; the first one is what it takes for its own."""
        return [f"{self.address}.default.svc.cluster.local", self.address, self.name]

    def place(self, root: Path, contents: dict[tuple[str, str], dict[str, str]]) -> Pod:
        """Write what is mounted below `root`, and give the pod with these paths in its command and variables.

        Args:
            root: An empty folder.
            contents: Files by ("secret" or "configMap", its name).
        """
        moved = {}
        for place, (kind, name, mode) in self.mounts.items():
            folder = root / place.lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
            moved[place] = str(folder)
            for file, text in contents[kind, name].items():
                (folder / file).write_text(text)
                # Here the owner reads what in a pod the group reads; ssh wants keys to be its owner's alone.
                (folder / file).chmod(mode & stat.S_IRWXU | stat.S_IRUSR)

        (root / "tmp").mkdir()
        moved["/tmp/"] = str(root / "tmp") + "/"  # a container has its own
        path = re.compile("|".join(map(re.escape, sorted(moved, key=len, reverse=True))))

        def replace(text: str) -> str:
            return path.sub(lambda found: moved[found.group()], text)

        environ = {variable: replace(value) for variable, value in self.environ.items()}
        return Pod(self.name, self.subdomain, [replace(word) for word in self.command], environ)


def read(*files: str) -> list[dict[str, Any]]:
    """Read all documents of manifests in containers/kubernetes."""
    return [document for file in files for document in yaml.safe_load_all((FOLDER / file).read_text())]


def make_pods(documents: list[dict[str, Any]]) -> list[Pod]:
    """Do what the controllers do: TrainJob to JobSet to Jobs to pods."""
    kinds = {document["kind"]: document for document in documents}
    if "TrainJob" in kinds:
        job_set, environs, mounts = _train_job(kinds["TrainJob"], kinds["ClusterTrainingRuntime"])
        return _job_set(job_set, environs, mounts)
    if "JobSet" in kinds:
        return _job_set(kinds["JobSet"], {}, {})
    job, service = kinds["Job"], kinds["Service"]
    name, subdomain = job["metadata"]["name"], job["spec"]["template"]["spec"]["subdomain"]
    assert subdomain == service["metadata"]["name"], "pods have names below their service only"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    return _job(name, subdomain, job["spec"], {}, {})


def _train_job(
    train_job: dict[str, Any], runtime: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, dict[str, str]], dict[str, dict[str, tuple[str, str, int]]]]:
    """Give the JobSet, and by replicated job what the operator adds to variables and mounts."""
    assert train_job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    name, trainer = train_job["metadata"]["name"], train_job["spec"]["trainer"]
    policy = runtime["spec"]["mlPolicy"]
    job_set = {"metadata": {"name": name}, "spec": copy.deepcopy(runtime["spec"]["template"]["spec"])}
    nodes, per_node = trainer["numNodes"], trainer["numProcPerNode"]
    environs: dict[str, dict[str, str]] = {}
    mounts: dict[str, dict[str, tuple[str, str, int]]] = {}
    for replicated in job_set["spec"]["replicatedJobs"]:
        job = replicated["template"]
        spec = job["spec"]
        container = next(c for c in spec["template"]["spec"]["containers"] if c["name"] == "node")
        is_trainer = job.get("metadata", {}).get("labels", {}).get(TRAINER_STEP) == "trainer"
        if is_trainer:
            container["command"], container["args"] = trainer["command"], trainer.get("args", [])
            container["env"] = container.get("env", []) + trainer.get("env", [])
        if "torch" in policy:
            spec["completions"] = spec["parallelism"] = nodes
            environs[replicated["name"]] = {
                "PET_NNODES": str(nodes),
                "PET_NPROC_PER_NODE": str(per_node),
                "PET_NODE_RANK": INDEX_FIELD,
                "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
                "PET_MASTER_PORT": "29500",
            }
        else:
            assert policy["mpi"]["mpiImplementation"] == "OpenMPI" and policy["mpi"]["runLauncherAsNode"]
            spec["completions"] = spec["parallelism"] = 1 if is_trainer else max(nodes - 1, 1)
            keys = ("secret", f"{name}-mpi-ssh-auth", 0o640)
            mounts[replicated["name"]] = {policy["mpi"]["sshAuthMountPath"]: keys}
            if is_trainer:
                mounts["launcher"]["/etc/mpi"] = ("configMap", f"{name}-mpi-hostfile", 0o444)
                environs["launcher"] = {
                    "OMPI_MCA_orte_default_hostfile": HOST_FILE,
                    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
                    "OMPI_MCA_orte_set_default_slots": str(per_node),
                    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
                }
    return job_set, environs, mounts


def _job_set(
    job_set: dict[str, Any],
    environs: dict[str, dict[str, str]],
    mounts: dict[str, dict[str, tuple[str, str, int]]],
) -> list[Pod]:
    pods = []
    name, spec = job_set["metadata"]["name"], job_set["spec"]
    assert spec["network"].get("enableDNSHostnames", True) and spec["network"]["publishNotReadyAddresses"]
    subdomain = spec["network"].get("subdomain", name)
    targets = spec.get("successPolicy", {}).get("targetReplicatedJobs")
    for replicated in spec["replicatedJobs"]:
        kind = replicated["name"]
        for number in range(replicated.get("replicas", 1)):
            job = f"{name}-{kind}-{number}"
            found = _job(
                job, subdomain, replicated["template"]["spec"], environs.get(kind, {}), mounts.get(kind, {})
            )
            for pod in found:
                pod.is_server = targets is not None and kind not in targets
            pods += found
    return pods


def _job(
    name: str,
    subdomain: str,
    spec: dict[str, Any],
    environ: dict[str, str],
    mounts: dict[str, tuple[str, str, int]],
) -> list[Pod]:
    assert spec.get("completionMode", "Indexed") == "Indexed"
    assert spec["completions"] == spec["parallelism"], "all ranks run at once"
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = dict(mounts)
    for mount in container["volumeMounts"]:
        volume = volumes[mount["name"]]
        if "secret" in volume:
            secret = volume["secret"]
            mounts[mount["mountPath"]] = ("secret", secret["secretName"], secret.get("defaultMode", 0o644))
        elif "configMap" in volume:
            mounts[mount["mountPath"]] = ("configMap", volume["configMap"]["name"], 0o644)
    pods = []
    for index in range(spec["completions"]):
        variables = {variable["name"]: variable["value"] for variable in container.get("env", [])} | environ
        variables = {key: str(index) if value == INDEX_FIELD else value for key, value in variables.items()}
        variables |= {
            "JOB_COMPLETION_INDEX": str(index),
            "HOSTNAME": f"{name}-{index}",
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
            "KUBERNETES_SERVICE_PORT": "443",
        }
        command = container.get("command", []) + container.get("args", [])
        pods.append(Pod(f"{name}-{index}", subdomain, command, variables, mounts))
    return pods


def host_file(pods: list[Pod], train_job: dict[str, Any]) -> str:
    """Give what Kubeflow Trainer writes into /etc/mpi/hostfile, in the order of the runtime's jobs."""
    slots = train_job["spec"]["trainer"]["numProcPerNode"]
    return "".join(f"{pod.address} slots={slots}\n" for pod in pods)
