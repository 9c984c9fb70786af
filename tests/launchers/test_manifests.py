"""Manifests of containers/kubernetes against the API.

Fields and their types: the models of the package kubeflow-trainer-api, which cover TrainJob,
ClusterTrainingRuntime, JobSet, Job, Service and ConfigMap. Those ignore fields that they do not know, so what
they read is compared with what is there. Words of which the API knows a few only, names that refer to each
other, and what smdp needs are no matter of models: field checks of our own.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest

from smdp import config

pytest.importorskip("yaml")
pytest.importorskip("kubeflow_trainer_api")
from kubeflow_trainer_api import models as api
from pods import FOLDER, TRAINER_STEP, read

FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
MODELS = {
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): "TrainerV1alpha1TrainJob",
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"): "TrainerV1alpha1ClusterTrainingRuntime",
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): "JobsetV1alpha2JobSet",
    ("batch/v1", "Job"): "IoK8sApiBatchV1Job",
    ("v1", "Service"): "IoK8sApiCoreV1Service",
    ("v1", "ConfigMap"): "IoK8sApiCoreV1ConfigMap",
}
# What is in these is called as the user likes.
FREE = ("labels", "annotations", "requests", "limits", "selector", "data")
PREEMPTED = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}], "action": "FailJob"}


def validate(document: dict[str, Any]) -> None:
    """Raise ValueError unless the API has every field of a document, with the type that it has there."""
    model = getattr(api, MODELS[document["apiVersion"], document["kind"]])
    unknown = list(_missing(document, model.from_dict(copy.deepcopy(document)).to_dict(), ""))
    if unknown:
        raise ValueError(f"the API has no {', '.join(unknown)}")


def _missing(wanted: Any, found: Any, path: str) -> Iterator[str]:
    if isinstance(wanted, dict):
        for key, value in wanted.items():
            if not isinstance(found, dict) or key not in found:
                yield f"{path}.{key}"
            else:
                yield from _missing(value, found[key], f"{path}.{key}")
    elif isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            yield path
        else:
            for index, (value, other) in enumerate(zip(wanted, found, strict=True)):
                yield from _missing(value, other, f"{path}[{index}]")
    elif wanted != found:
        yield f"{path}={wanted!r} (but {found!r})"


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Give the way to every field."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            if key not in FREE:
                yield from _places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _places(inner, (*path, index))


def _at(document: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


def _jobs(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Give the specifications of the Jobs that come of a document, by name."""
    if document["kind"] == "Job":
        return {"": document["spec"]}
    if document["kind"] not in ("JobSet", "ClusterTrainingRuntime"):
        return {}
    return {job["name"]: job["template"]["spec"] for job in _job_set(document)["replicatedJobs"]}


def _job_set(document: dict[str, Any]) -> dict[str, Any]:
    spec = document["spec"]
    return spec if document["kind"] == "JobSet" else spec["template"]["spec"]


JOBS = [
    pytest.param(job, id=f"{file}-{name}" if name else file)
    for file in FILES
    for document in read(file)
    for name, job in _jobs(document).items()
]


def test_there_is_one_of_each_kind() -> None:
    kinds = [document["kind"] for file in FILES for document in read(file)]
    assert sorted(kinds) == [
        *("ClusterTrainingRuntime",) * 2, "ConfigMap", "Job", *("JobSet",) * 2, "Service", *("TrainJob",) * 2,
    ]  # fmt: skip


@pytest.mark.parametrize("file", FILES)
def test_the_api_has_every_field(file: str) -> None:
    for document in read(file):
        validate(document)


@pytest.mark.parametrize("file", FILES)
def test_a_misspelt_field_is_caught_wherever_it_is(file: str) -> None:
    caught = 0
    for document in read(file):
        for *path, key in _places(document):
            if not isinstance(key, str) or key in ("apiVersion", "kind") or (path and path[-1] in FREE):
                continue
            damaged = copy.deepcopy(document)
            parent = _at(damaged, tuple(path))
            parent[key + "x"] = parent.pop(key)
            with pytest.raises(ValueError, match=rf"{key}"):
                validate(damaged)
            caught += 1
    assert caught > 10


@pytest.mark.parametrize(
    ("file", "path", "value"),
    [
        ("torch_train_job.yaml", ("spec", "trainer", "numNodes"), "2"),
        ("torch_train_job.yaml", ("spec", "trainer", "command"), "torchrun"),
        ("job_set.yaml", ("spec", "failurePolicy", "maxRestarts"), "three"),
        ("indexed_job.yaml", ("spec", "publishNotReadyAddresses"), "yes"),
    ],
)
def test_a_wrong_type_is_caught(file: str, path: tuple[str, ...], value: object) -> None:
    document = read(file)[0]
    _at(document, path[:-1])[path[-1]] = value
    with pytest.raises(ValueError, match=r"[Ii]nput should be"):
        validate(document)


@pytest.mark.parametrize("file", FILES)
def test_names(file: str) -> None:
    for document in read(file):
        name = document["metadata"]["name"]
        assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name) and len(name) <= 40


@pytest.mark.parametrize("job", JOBS)
def test_volumes_secret_and_shared_memory(job: dict[str, Any]) -> None:
    pod = job["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for container in pod["containers"]:
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        for mount in mounts.values():
            assert mount["name"] in volumes
        assert volumes[mounts["/dev/shm"]["name"]]["emptyDir"]["medium"] == "Memory"
        secrets = {path: mount for path, mount in mounts.items() if "secret" in volumes[mount["name"]]}
        for mount in secrets.values():
            assert mount["readOnly"] is True
            assert volumes[mount["name"]]["secret"]["defaultMode"] == 0o440
        (folder,) = [path for path, mount in secrets.items() if mount["name"] == "secret"]
        environ = {variable["name"]: variable["value"] for variable in container.get("env", [])}
        assert not config.unknown(environ)
        if "sshd" not in str(container.get("args")):
            assert environ["SMDP_SECRET_FILE"] == f"{folder}/secret"


@pytest.mark.parametrize("job", JOBS)
def test_pods_are_no_root_and_get_time_to_save(job: dict[str, Any]) -> None:
    pod = job["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 1000
    assert 30 < pod["terminationGracePeriodSeconds"] < 120  # the default; a spot machine's notice


@pytest.mark.parametrize("job", JOBS)
def test_failures(job: dict[str, Any]) -> None:
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # Kubernetes demands it beside a podFailurePolicy
    assert job["backoffLimit"] == 0  # one rank alone cannot come back
    if "podFailurePolicy" not in job:
        return
    rules = job["podFailurePolicy"]["rules"]
    assert PREEMPTED in rules
    for rule in rules:
        assert rule["action"] in ("FailJob", "FailIndex", "Ignore", "Count")
        if "onExitCodes" in rule:
            codes = rule["onExitCodes"]
            assert codes["operator"] in ("In", "NotIn") and codes["values"] == [75]
            assert codes["containerName"] in [container["name"] for container in pod["containers"]]


@pytest.mark.parametrize(
    "file", ["job_set.yaml", "mpi_job_set.yaml", "mpi_runtime.yaml", "torch_runtime.yaml"]
)
def test_job_sets(file: str) -> None:
    (document,) = [document for document in read(file) if document["kind"] != "ConfigMap"]
    names = list(_jobs(document))
    spec = _job_set(document)
    assert spec["network"]["publishNotReadyAddresses"] is True
    policy = spec["failurePolicy"]
    assert policy["restartStrategy"] in ("Recreate", "BlockingRecreate")
    (rule,) = policy["rules"]
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    assert rule["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    for job in spec["replicatedJobs"]:
        for needed in job.get("dependsOn", []):
            assert names.index(needed["name"]) < names.index(job["name"])
            assert needed["status"] in ("Ready", "Complete")
    assert set(spec.get("successPolicy", {}).get("targetReplicatedJobs", names)) <= set(names)
    assert spec.get("successPolicy", {}).get("operator", "All") in ("All", "Any")


@pytest.mark.parametrize("file", ["job_set.yaml", "indexed_job.yaml"])
def test_the_size_is_the_number_of_pods(file: str) -> None:
    (job,) = [job for document in read(file) for job in _jobs(document).values()]
    (container,) = job["template"]["spec"]["containers"]
    environ = {variable["name"]: variable["value"] for variable in container["env"]}
    assert job["completionMode"] == "Indexed"
    assert job["completions"] == job["parallelism"] == int(environ["SMDP_WORLD_SIZE"])


@pytest.mark.parametrize("kind", ["torch", "mpi"])
def test_train_jobs_and_their_runtimes(kind: str) -> None:
    (job,), (runtime,) = read(f"{kind}_train_job.yaml"), read(f"{kind}_runtime.yaml")
    reference = job["spec"]["runtimeRef"]
    assert reference["kind"] == runtime["kind"] and reference["name"] == runtime["metadata"]["name"]
    assert runtime["apiVersion"].startswith(reference["apiGroup"] + "/")
    assert kind in runtime["spec"]["mlPolicy"]
    jobs = {job["name"]: job["template"] for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]}
    trainers = [
        name
        for name, job in jobs.items()
        if job.get("metadata", {}).get("labels", {}).get(TRAINER_STEP) == "trainer"
    ]
    # Names that the operator looks for.
    assert list(jobs) == (["node"] if kind == "torch" else ["node", "launcher"])
    assert trainers == list(jobs)[-1:]
    for template in jobs.values():
        assert [c["name"] for c in template["spec"]["template"]["spec"]["containers"]] == ["node"]


def test_mpi_pods_listen_where_mpirun_comes_to() -> None:
    (job,), (runtime,) = read("mpi_train_job.yaml"), read("mpi_runtime.yaml")
    policy = runtime["spec"]["mlPolicy"]["mpi"]
    assert policy["mpiImplementation"] == "OpenMPI" and policy["runLauncherAsNode"] is True
    (container,) = _jobs(runtime)["node"]["template"]["spec"]["containers"]
    port = container["ports"][0]["containerPort"]
    assert container["readinessProbe"]["tcpSocket"]["port"] == port == 2222
    assert f"-p {port} " in container["args"][0]
    arguments = job["spec"]["trainer"]["args"]
    assert any(f"-p {port} -i {policy['sshAuthMountPath']}/id_rsa" in word for word in arguments)


def test_the_job_set_of_mpirun_has_hosts_and_keys() -> None:
    hosts, document = read("mpi_job_set.yaml")
    jobs = _jobs(document)
    # sshd never ends, and is there when mpirun begins.
    assert _job_set(document)["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["launcher"]}
    assert _job_set(document)["replicatedJobs"][1]["dependsOn"] == [{"name": "worker", "status": "Ready"}]
    lines = hosts["data"]["hostfile"].splitlines()
    assert len(lines) == jobs["worker"]["completions"] + jobs["launcher"]["completions"]
    worker, launcher = (jobs[name]["template"]["spec"] for name in ("worker", "launcher"))
    mounts = {mount["name"]: mount["mountPath"] for mount in launcher["containers"][0]["volumeMounts"]}
    arguments = launcher["containers"][0]["args"]
    assert arguments[arguments.index("--hostfile") + 1] == f"{mounts['hosts']}/hostfile"
    (volume,) = [volume for volume in launcher["volumes"] if volume["name"] == "hosts"]
    assert volume["configMap"]["name"] == hosts["metadata"]["name"]
    (container,) = worker["containers"]
    port = container["ports"][0]["containerPort"]
    assert container["readinessProbe"]["tcpSocket"]["port"] == port == 2222
    assert f"-p {port} " in container["args"][0]
    assert f"AuthorizedKeysFile={mounts['keys']}/authorized_keys" in container["args"][0]
    assert any(f"-p {port} -i {mounts['keys']}/id_ed25519" in word for word in arguments)
