"""Each launcher's variables, the order among launchers, and nonsense."""

from __future__ import annotations

import json
import logging
import os
import socket
from pathlib import Path
from unittest import mock

import pytest

from smdp import environments
from smdp._errors import ConfigError
from smdp.environments import Launch, choice, pmi
from smdp.environments.base import port_for
from smdp.environments.open_mpi import hnp_address
from smdp.environments.slurm import expand_first
from smdp.environments.torch_variables import set_torch_variables

SMDP = {
    "SMDP_RANK": "1",
    "SMDP_WORLD_SIZE": "4",
    "SMDP_LOCAL_RANK": "1",
    "SMDP_LOCAL_WORLD_SIZE": "2",
    "SMDP_MASTER_ADDR": "10.0.0.1",
    "SMDP_MASTER_PORT": "5000",
}
KUBEFLOW = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "JOB_COMPLETION_INDEX": "1",
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "1",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "digits-node-0-0.digits",
    "PET_MASTER_PORT": "29500",
}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "10.0.0.2",
    "MASTER_PORT": "29500",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_orte_hnp_uri": "3221946368.0;tcp://10.0.0.3,192.168.0.1:45679",
    "PMIX_NAMESPACE": "3221946369",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "0",
    "MV2_COMM_WORLD_SIZE": "2",
    "MV2_COMM_WORLD_LOCAL_RANK": "0",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2",
}
HOROVOD = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.4",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "31000",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_NODELIST": "node[001-003]",
}
SAGEMAKER = {"SM_HOSTS": '["algo-1", "algo-10", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
KUBERNETES = {
    "JOB_COMPLETION_INDEX": "1",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "HOSTNAME": "train-1",
    "SMDP_WORLD_SIZE": "2",
}


def detect(environ: dict[str, str]) -> Launch:
    with mock.patch.dict(os.environ, environ, clear=True):
        return environments.detect()


def test_smdp_variables() -> None:
    assert detect(SMDP) == Launch(1, 4, 1, 2, "10.0.0.1", 5000, "SMDP_* variables")


def test_torchrun_takes_the_port_after_torchs() -> None:
    assert detect(TORCHRUN) == Launch(2, 4, 0, 2, "10.0.0.2", 29501, "torchrun")
    assert detect({**TORCHRUN, "SMDP_MASTER_PORT": "700"}).master_port == 700


def test_torch_variables_without_torchrun() -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1234"}
    assert detect(environ) == Launch(0, 2, None, None, "h", 1235, "torchrun")


def test_a_lone_rank_is_somebody_elses() -> None:
    assert detect({"RANK": "3"}).source == "single process"


def test_torchruns_last_port() -> None:
    with pytest.raises(ConfigError, match=r"MASTER_PORT='?65535'?.*1 to 65534"):
        detect({**TORCHRUN, "MASTER_PORT": "65535"})


def test_open_mpi() -> None:
    launch = detect(OPEN_MPI)
    assert launch == Launch(3, 4, 1, 2, "10.0.0.3", port_for("3221946369"), "Open MPI")
    assert 61000 <= launch.master_port < 65536


def test_open_mpi_on_one_host_needs_no_address() -> None:
    environ = {**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    del environ["OMPI_MCA_orte_hnp_uri"]
    assert detect(environ).master_addr == "127.0.0.1"


def test_open_mpi_5_on_several_hosts() -> None:
    environ = {**OPEN_MPI, "PMIX_NAMESPACE": "prterun-head-node-17@1"}
    del environ["OMPI_MCA_orte_hnp_uri"]
    assert detect(environ).master_addr == "head-node"
    assert detect(environ).job == "prterun-head-node-17@1"
    environ["PMIX_NAMESPACE"] = "of another form"
    with pytest.raises(ConfigError, match=r"SMDP_MASTER_ADDR is not set.*mpirun -x SMDP_MASTER_ADDR"):
        detect(environ)
    assert detect({**environ, "SMDP_MASTER_ADDR": "head"}).master_addr == "head"
    assert detect({**environ, "SLURM_JOB_NODELIST": "n[4-5]"}).master_addr == "n4"
    # Rank 0 notices that mpirun runs elsewhere, and knows its own name.
    environ.update(PMIX_NAMESPACE="prterun-192.0.2.77-17@1", OMPI_COMM_WORLD_RANK="0")
    with pytest.raises(ConfigError, match=f"mpirun -x SMDP_MASTER_ADDR={socket.gethostname()}$"):
        detect(environ)
    environ["PMIX_NAMESPACE"] = f"prterun-{socket.gethostname()}-17@1"
    assert detect(environ).master_addr == socket.gethostname()
    environ["PMIX_NAMESPACE"] = "of another form"
    with mock.patch.dict(os.environ, environ, clear=True):
        assert environments.detect(needs_master=False).master_addr == ""
        assert environments.detect(master_addr="x", master_port=9).master_addr == "x"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("1.0;tcp://10.0.0.1:4", "10.0.0.1"),
        ("1.0;tcp://10.0.0.1,10.0.0.2:4", "10.0.0.1"),
        ("1.0;tcp6://[fd00::1,fd00::2]:4", "fd00::1"),
        ("1.0;usock;tcp://10.0.0.9:4;tcp6://[fd00::1]:5", "10.0.0.9"),
        ("", ""),
    ],
)
def test_hnp_address(uri: str, expected: str) -> None:
    assert hnp_address(uri) == expected


def test_mpich_and_mvapich() -> None:
    assert detect(MPICH) == Launch(1, 2, 1, 2, "127.0.0.1", port_for(""), "MPICH or Intel MPI")
    assert detect(MVAPICH) == Launch(0, 2, 0, 2, "127.0.0.1", port_for(""), "MVAPICH")


def test_horovod() -> None:
    assert detect(HOROVOD) == Launch(1, 4, 1, 2, "10.0.0.4", port_for("10.0.0.4:31000"), "Horovod")


def test_mpirun_on_a_login_node_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"SLURM_JOB_NODELIST": "192.0.2.[77-78]"}
    open_mpi_5 = {**OPEN_MPI, "PMIX_NAMESPACE": "prterun-login-17@1"}
    del open_mpi_5["OMPI_MCA_orte_hnp_uri"]
    monkeypatch.setattr(pmi, "control_port", lambda: "login:4711")
    # A step of SLURM is a daemon of mpirun, on the other hosts only where mpirun runs on the first.
    for environ in (OPEN_MPI, open_mpi_5, {**MPICH, "PMI_SIZE": "4"}):
        assert detect({**environ, **job, "SLURM_STEP_NODELIST": "192.0.2.78"}).master_addr == "192.0.2.77"
    assert detect({**MPICH, "PMI_SIZE": "4"}).master_addr == "login"
    with pytest.raises(ConfigError, match=f"mpirun -x SMDP_MASTER_ADDR={socket.gethostname()}$"):
        detect({**OPEN_MPI, **job, "OMPI_COMM_WORLD_RANK": "0"})


def test_slurm() -> None:
    assert detect(SLURM) == Launch(3, 5, 1, 2, "node001", port_for("4711.0"), "SLURM")
    assert detect({**SLURM, "SLURM_NODEID": "2", "SLURM_LOCALID": "0"}).local_size == 1
    assert detect({**SLURM, "SLURM_STEP_NODELIST": "node002"}).master_addr == "node002"


def test_srun_with_pmi2_is_slurm() -> None:
    pmi2 = {"PMI_RANK": "3", "PMI_SIZE": "5", "PMI_JOBID": "4711.0", "PMI_FD": "16"}
    assert detect({**SLURM, **pmi2, "SLURM_STEP_NODELIST": "node[002-003]"}) == Launch(
        3, 5, 1, 2, "node002", port_for("4711.0"), "SLURM"
    )
    assert (
        "not using MPICH or Intel MPI: srun --mpi=pmi2 set these variables; SLURM's own also provide local"
        " ranks and hosts" in environments.explain({**SLURM, **pmi2})
    )
    # mpiexec of MPICH starts its proxies, one per host, by srun, and their ranks carry both.
    for ours in ({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, {"PMI_SIZE": "6"}, {"PMI_RANK": "2"}):
        assert detect({**SLURM, **pmi2, **ours}).source == "MPICH or Intel MPI"


@pytest.mark.parametrize("name", ["bash", "interactive"])
def test_slurms_interactive_shell_is_no_task(name: str) -> None:
    environ = {**SLURM, "SLURM_JOB_NAME": name}
    assert detect(environ).source == "single process"
    assert detect({**environ, "SLURM_STEP_NUM_TASKS": "1"}).source == "single process"
    # `srun -n 5 bash -c ...`, and every srun below salloc, have this name as well.
    assert detect({**environ, "SLURM_STEP_NUM_TASKS": "5"}).source == "SLURM"


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "h"}, "WORLD_SIZE=2 is set but RANK is not"),
        ({"OMPI_COMM_WORLD_SIZE": "3"}, "OMPI_COMM_WORLD_SIZE=3 is set but OMPI_COMM_WORLD_RANK is not"),
        ({"PMI_SIZE": "4"}, "PMI_SIZE=4 is set but PMI_RANK is not"),
        ({"RANK": "1"}, "RANK=1 is set but WORLD_SIZE is not"),
    ],
)
def test_half_a_launcher_is_told(
    environ: dict[str, str], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert detect(environ).source == "single process"
    assert f"trains alone: {told}" in caplog.text


def test_sbatchs_own_shell_is_no_task(caplog: pytest.LogCaptureFixture) -> None:
    environ = {**SLURM, "SLURM_PROCID": "0", "SLURM_JOB_ID": "4712", "SLURM_NTASKS": "7"}
    del environ["SLURM_STEP_ID"]
    assert detect(environ).source == "single process"
    assert "trains alone: SLURM_NTASKS=7" in caplog.text and "srun" in caplog.text
    caplog.clear()
    assert detect(environ).source == "single process"
    assert not caplog.text  # once per process


def test_torchruns_defaults_are_no_ranks(caplog: pytest.LogCaptureFixture) -> None:
    defaults = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "head"}
    assert detect(defaults).source == "single process"
    assert "PET_NNODES=2 is an option of torchrun" in caplog.text
    caplog.clear()
    assert detect({**TORCHRUN, **defaults}).master_addr == "10.0.0.2"
    assert not caplog.text


def test_debug_says_who_decides_and_why(caplog: pytest.LogCaptureFixture) -> None:
    environ = {**SLURM, **TORCHRUN, "PET_NNODES": "3", "SMDP_LOG_LEVEL": "debug"}
    logger = logging.getLogger("smdp")
    before = logger.level
    logger.setLevel(logging.NOTSET)
    try:
        assert detect(environ).source == "torchrun"
        lines = [record.getMessage() for record in caplog.records]
        assert lines == [
            "[smdp] launcher: using torchrun: rank 2 of 4, rank 0 at 10.0.0.2:29501",
            (
                "[smdp] launcher: not using SLURM, which has lower precedence than torchrun: rank 3 of 5,"
                " rank 0 at 10.0.0.2:29501"
            ),
            "[smdp] launcher: PET_NNODES=3: defaults for torchrun's options, which do not define a rank",
        ]
    finally:
        logger.setLevel(before)


def test_variables_that_smdp_sets_are_those_of_no_launcher(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("smdp")
    before = logger.level
    logger.setLevel(logging.NOTSET)
    environ = {**SLURM, "SMDP_LOG_LEVEL": "debug"}
    try:
        with (
            mock.patch.dict(os.environ, environ, clear=True),
            mock.patch.object(choice, "_sets_variables", False),
        ):
            assert set_torch_variables()
            assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("3", "5")
            environments.log_choice()
        assert "using SLURM: rank 3 of 5" in caplog.text and "torchrun" not in caplog.text
    finally:
        logger.setLevel(before)


def test_explanations_of_what_makes_no_sense() -> None:
    lines = environments.explain({**SLURM, "SLURM_NTASKS": "2", "SMDP_LOCAL_RANK": "1"})
    assert lines[0].startswith("using SLURM: its variables are invalid (SLURM_PROCID='3'")
    assert "not using SMDP_* variables: SMDP_LOCAL_RANK alone does not define a rank" in lines
    shell = {"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "interactive"}
    assert environments.explain(shell) == [
        "using single process: rank 0 of 1, rank 0 at 127.0.0.1:0",
        (
            "not using SLURM: this is the shell of sbatch or salloc, not a task of srun (SLURM_STEP_ID is not"
            " set)"
        ),
    ]


@pytest.mark.parametrize(
    ("nodelist", "expected"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("node[001-004,7]", "node001"),
        ("node[7,001-004],other", "node7"),
        ("rack[2-3]node[01-16].example", "rack2node01.example"),
        ("login-1,node[1-2]", "login-1"),
    ],
)
def test_first_host_of_slurms_list(nodelist: str, expected: str) -> None:
    assert expand_first(nodelist) == expected


def test_slurms_tasks_per_node_in_another_form() -> None:
    with pytest.raises(ConfigError, match=r"SLURM_TASKS_PER_NODE='two'"):
        detect({**SLURM, "SLURM_TASKS_PER_NODE": "two"})


def test_sagemaker_ranks_by_place_in_the_list() -> None:
    assert detect(SAGEMAKER) == Launch(2, 3, 0, 1, "algo-1", 7777, "SageMaker")
    assert detect({**SAGEMAKER, "SM_MASTER_ADDR": "algo-2"}).master_addr == "algo-2"


def test_sagemaker_reads_the_resource_config(tmp_path: Path) -> None:
    path = tmp_path / "input" / "config" / "resourceconfig.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"current_host": "algo-1", "hosts": ["algo-1", "algo-2"]}))
    assert detect({"SAGEMAKER_BASE_DIR": str(tmp_path)}) == Launch(0, 2, 0, 1, "algo-1", 7777, "SageMaker")
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"resourceconfig.json"):
        detect({"SAGEMAKER_BASE_DIR": str(tmp_path)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SM_HOSTS": "algo-1"}, r"SM_HOSTS='algo-1'.*JSON list"),
        ({"SM_HOSTS": "[]"}, r"SM_HOSTS=.*JSON list"),
        ({"SM_CURRENT_HOST": "algo-7"}, r"SM_CURRENT_HOST='algo-7'.*algo-1, algo-10, algo-2"),
    ],
)
def test_sagemaker_nonsense(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        detect({**SAGEMAKER, **changes})


@pytest.mark.parametrize(
    ("host", "gpus", "is_warned"), [("algo-1", "8", True), ("algo-1", "1", False), ("algo-2", "8", False)]
)
def test_sagemakers_gpus_without_a_launcher(
    host: str, gpus: str, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {**SAGEMAKER, "SM_CURRENT_HOST": host, "SM_NUM_GPUS": gpus}
    assert detect(environ).source == "SageMaker"
    told = "this host has 8 GPUs, but no launcher has started this process" in caplog.text
    assert told == is_warned
    if is_warned:
        assert "SAGEMAKER_TRAINING_MODULE=smdp.sagemaker:main" in caplog.text
        caplog.clear()
        smdp = {"SMDP_RANK": "0", "SMDP_WORLD_SIZE": "8", "SMDP_MASTER_ADDR": "algo-1"}
        detect({**environ, **smdp, "SM_NUM_GPUS": "9"})
        assert not caplog.text


def test_kubeflow_without_torchrun() -> None:
    name = "Kubeflow without torchrun"
    assert detect(KUBEFLOW) == Launch(1, 2, 0, 1, "digits-node-0-0.digits", 29501, name)
    assert detect({**KUBEFLOW, **TORCHRUN}).source == "torchrun"
    assert detect({**KUBEFLOW, "SMDP_WORLD_SIZE": "1"}).world_size == 1
    assert detect({**KUBEFLOW, "SMDP_WORLD_SIZE": "2"}).source == name
    # Elsewhere PET_* are what somebody likes torchrun to do.
    assert detect({**KUBEFLOW, "KUBERNETES_SERVICE_HOST": ""}).source == "single process"


@pytest.mark.parametrize(
    ("rank", "per_pod", "warning"),
    [
        ("0", "4", "asks for 4 ranks per pod"),
        ("0", "auto", "as many as there"),
        ("0", "1", ""),
        ("1", "4", ""),
    ],
)
def test_rank_0_says_what_a_pod_without_torchrun_lacks(
    rank: str, per_pod: str, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {**KUBEFLOW, "PET_NODE_RANK": rank, "PET_NPROC_PER_NODE": per_pod}
    with mock.patch.object(choice, "_said", set()):
        for _ in range(2):
            detect(environ)
        detect({**environ, **TORCHRUN})
    messages = [record.message for record in caplog.records if "without torchrun" in record.message]
    assert len(messages) == (1 if warning else 0)
    assert all(warning in message for message in messages)


def test_kubernetes() -> None:
    with mock.patch("socket.getfqdn", return_value="train-1.workers.ns.svc.cluster.local"):
        launch = detect(KUBERNETES)
    assert launch == Launch(
        1, 2, None, None, "train-0.workers.ns.svc.cluster.local", port_for("train"), "Kubernetes index"
    )
    with mock.patch("socket.getfqdn", return_value="train-1"):
        with pytest.raises(ConfigError, match=r"SMDP_MASTER_ADDR.*headless service"):
            detect(KUBERNETES)
        assert detect({**KUBERNETES, "SMDP_WORLD_SIZE": "1"}).rank == 0
    del (environ := dict(KUBERNETES))["SMDP_WORLD_SIZE"]
    with pytest.raises(ConfigError, match=r"JOB_COMPLETION_INDEX='1' is set but SMDP_WORLD_SIZE is not"):
        detect(environ)


def test_kubernetes_ports_agree_between_pods() -> None:
    with mock.patch("socket.getfqdn", return_value=""):
        one = {**KUBERNETES, "SMDP_MASTER_ADDR": "m"}
        zero = {**one, "JOB_COMPLETION_INDEX": "0", "HOSTNAME": "train-0"}
        assert detect(one).master_port == detect(zero).master_port


def test_single_process() -> None:
    assert detect({}) == Launch(0, 1, 0, 1, "127.0.0.1", 0, "single process")


def test_the_order() -> None:
    environ: dict[str, str] = {}
    expected = ["single process"]
    kubernetes = {**KUBERNETES, "SMDP_MASTER_ADDR": "m"}
    for variables, source in (
        (kubernetes, "Kubernetes index"),
        (KUBEFLOW, "Kubeflow without torchrun"),
        (SAGEMAKER, "SageMaker"),
        (SLURM, "SLURM"),
        (HOROVOD, "Horovod"),
        (MVAPICH, "MVAPICH"),
        (MPICH, "MPICH or Intel MPI"),
        (OPEN_MPI, "Open MPI"),
        (TORCHRUN, "torchrun"),
        (SMDP, "SMDP_* variables"),
    ):
        environ.update(variables)
        assert detect(environ).source == source
        expected.insert(0, source)
    assert [environment.name for environment in environments.ENVIRONMENTS] == expected
    with mock.patch.dict(os.environ, environ, clear=True):
        assert environments.detect(rank=0, world_size=2).source == "arguments"


@pytest.mark.parametrize("index", range(10))
def test_every_launcher_honours_smdps_master(index: int) -> None:
    every = (SMDP, TORCHRUN, OPEN_MPI, MPICH, MVAPICH, HOROVOD, SLURM, SAGEMAKER, KUBERNETES, KUBEFLOW)
    variables = every[index]
    launch = detect({**variables, "SMDP_MASTER_ADDR": "boss", "SMDP_MASTER_PORT": "77"})
    assert (launch.master_addr, launch.master_port) == ("boss", 77)
    plain = {name: value for name, value in variables.items() if not name.startswith("SMDP_MASTER")}
    launch = detect({**plain, "MASTER_ADDR": "torch", "MASTER_PORT": "77"})
    assert (launch.master_addr, launch.master_port) == ("torch", 78)


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (SMDP, {"SMDP_RANK": "4"}, r"SMDP_RANK='4'.*0 to 3, since SMDP_WORLD_SIZE=4"),
        (SMDP, {"SMDP_RANK": "-1"}, r"SMDP_RANK='-1'.*an integer >= 0"),
        (SMDP, {"SMDP_RANK": "one"}, r"SMDP_RANK='one'.*an integer >= 0"),
        (SMDP, {"SMDP_RANK": ""}, r"SMDP_WORLD_SIZE='4' is set but SMDP_RANK is not set"),
        (SMDP, {"SMDP_WORLD_SIZE": ""}, r"SMDP_RANK='1' is set but SMDP_WORLD_SIZE is not set"),
        (SMDP, {"SMDP_WORLD_SIZE": "0"}, r"SMDP_WORLD_SIZE='0'.*an integer >= 1"),
        (SMDP, {"SMDP_WORLD_SIZE": "99999999999"}, r"SMDP_WORLD_SIZE='99999999999'"),
        (SMDP, {"SMDP_LOCAL_RANK": "2"}, r"SMDP_LOCAL_RANK='2'.*0 to 1, since SMDP_LOCAL_WORLD_SIZE=2"),
        (SMDP, {"SMDP_LOCAL_WORLD_SIZE": "5"}, r"SMDP_LOCAL_WORLD_SIZE='5'.*1 to 4, since SMDP_WORLD_SIZE"),
        (SMDP, {"SMDP_MASTER_PORT": "0"}, r"SMDP_MASTER_PORT='0'.*a port, 1 to 65535"),
        (SMDP, {"SMDP_MASTER_PORT": "65536"}, r"SMDP_MASTER_PORT='65536'.*a port, 1 to 65535"),
        (SMDP, {"SMDP_MASTER_PORT": "http"}, r"SMDP_MASTER_PORT='http'.*a port, 1 to 65535"),
        (TORCHRUN, {"MASTER_PORT": "-5"}, r"MASTER_PORT='-5'.*a port, 1 to 65535"),
        (TORCHRUN, {"RANK": "9"}, r"RANK='9'.*0 to 3, since WORLD_SIZE=4"),
        (TORCHRUN, {"WORLD_SIZE": "1000000"}, r"WORLD_SIZE='1000000'.*an integer >= 1 and <= 65536"),
        (TORCHRUN, {"WORLD_SIZE": ""}, r"RANK='2' is set but WORLD_SIZE is not set"),
        (TORCHRUN, {"MASTER_ADDR": ""}, r"SMDP_MASTER_ADDR is not set, and torchrun"),
        (OPEN_MPI, {"OMPI_COMM_WORLD_SIZE": ""}, r"OMPI_COMM_WORLD_SIZE is not set"),
        (MPICH, {"PMI_SIZE": "1"}, r"PMI_RANK='1'.*0 to 0, since PMI_SIZE=1"),
        (HOROVOD, {"HOROVOD_SIZE": "x"}, r"HOROVOD_SIZE='x'"),
        (SLURM, {"SLURM_NTASKS": "2"}, r"SLURM_PROCID='3'.*0 to 1, since SLURM_NTASKS=2"),
        (SLURM, {"SLURM_NTASKS": ""}, r"SLURM_NTASKS is not set"),
        (SLURM, {"SLURM_STEP_NUM_TASKS": "0"}, r"SLURM_STEP_NUM_TASKS='0' is not.*an integer >= 1"),
        (KUBEFLOW, {"PET_NNODES": "1:4"}, r"PET_NNODES='1:4' is a range.*torchrun"),
        (KUBEFLOW, {"PET_NODE_RANK": "2"}, r"PET_NODE_RANK='2'.*0 to 1, since PET_NNODES=2"),
        (KUBEFLOW, {"PET_MASTER_ADDR": ""}, r"SMDP_MASTER_ADDR is not set.*start the script with torchrun"),
        (KUBEFLOW, {"PET_MASTER_PORT": "x"}, r"PET_MASTER_PORT='x'.*a port, 1 to 65535"),
        (KUBEFLOW, {"SMDP_WORLD_SIZE": "8"}, r"SMDP_WORLD_SIZE='8'.*allowed: 1; or 2, since PET_NNODES=2"),
        (KUBERNETES, {"JOB_COMPLETION_INDEX": "2"}, r"JOB_COMPLETION_INDEX='2'.*since SMDP_WORLD_SIZE=2"),
    ],
)
def test_nonsense_is_an_error_of_one_line(
    base: dict[str, str], changes: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        detect({**base, **changes})
    assert "\n" not in str(caught.value)
    assert any(cure in str(caught.value) for cure in ("; allowed: ", "; set ", "; start ")), caught.value


def test_arguments_win() -> None:
    with mock.patch.dict(os.environ, TORCHRUN, clear=True):
        launch = environments.detect(rank=0, world_size=3, master_addr="a", master_port=5, local_rank=0)
        assert launch == Launch(0, 3, 0, None, "a", 5, "arguments")
        assert environments.detect(master_addr="b").master_addr == "b"
        assert environments.detect(local_rank=1).local_rank == 1
    with mock.patch.dict(os.environ, clear=True):
        assert environments.detect(rank=0, world_size=1).master_addr == "127.0.0.1"
        assert environments.detect(rank=1, world_size=2, local_size=2).master_addr == "127.0.0.1"


def test_ranks_by_arguments_and_by_variables_meet() -> None:
    with mock.patch.dict(os.environ, clear=True):
        given = environments.detect(rank=0, world_size=4, master_addr="a")
    read = detect({"SMDP_RANK": "1", "SMDP_WORLD_SIZE": "4", "SMDP_MASTER_ADDR": "a"})
    assert (given.master_addr, given.master_port, given.job) == (read.master_addr, read.master_port, read.job)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 1}, r"rank=1 was passed without world_size"),
        ({"world_size": 1}, r"world_size=1 was passed without rank"),
        ({"rank": 2, "world_size": 2}, r"rank=2.*>= 0 and <= 1, since world_size=2"),
        ({"rank": -1, "world_size": 2}, r"rank=-1"),
        ({"rank": 0, "world_size": 0}, r"world_size=0"),
        ({"rank": True, "world_size": 2}, r"rank=True"),
        ({"master_port": 0}, r"master_port=0.*<= 65535"),
        ({"master_port": 65536}, r"master_port=65536"),
        ({"local_rank": 1}, r"local_rank=1"),
        ({"local_size": 2}, r"local_size=2"),
    ],
)
def test_wrong_arguments(arguments: dict[str, int], message: str) -> None:
    with mock.patch.dict(os.environ, clear=True), pytest.raises(ValueError, match=message):
        environments.detect(**arguments)  # type: ignore[arg-type]


def test_several_hosts_by_arguments_need_an_address() -> None:
    with mock.patch.dict(os.environ, clear=True), pytest.raises(ConfigError, match="SMDP_MASTER_ADDR"):
        environments.detect(rank=0, world_size=2)
