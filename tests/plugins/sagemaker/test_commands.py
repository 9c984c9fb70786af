"""smddprun and its siblings: command lines of Amazon's libraries, on smdp."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from containers import HAS_TOOLKIT, SCRIPTS, Container

sys.path.insert(0, str(Path(__file__).parents[2] / "cluster"))
from network import Cluster, why_not

COMMANDS = ["smdprun", "smddprun", "smddpmprun", "smddpsinglenode", "smddp_singlenode_dev"]
REASON = why_not()
SHOW = (
    "import importlib.util, os, sys\n"
    "found = importlib.util.find_spec('smdistributed') is not None\n"
    "seen = ['rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], found, sys.argv[1:], __name__]\n"
    "sys.stdout.write(' '.join(map(str, seen)) + '\\n')\n"  # in one piece, for mpirun mixes the ranks' writes
)


def run(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("SM", "SAGEMAKER_"))}
    mine["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{mine['PATH']}"
    mine |= {"OMP_NUM_THREADS": "1", **variables}
    if shutil.which(command[0], path=mine["PATH"]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, env=mine, cwd=folder, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("name", COMMANDS)
def test_it_starts_the_ranks_of_this_machine(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHOW)
    done = run([name, "train.py", "--epochs", "3"], tmp_path, SM_NUM_GPUS="2")
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"rank {rank} of 2 True ['--epochs', '3'] __main__" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["smddprun", sys.executable, "-u", "train.py", "x"],
        ["smddprun", sys.executable, "-m", "mpi4py", "train.py", "x"],
        ["smddprun", "-m", "train", "x"],
        [
            "smddpmprun",
            "-i",
            "ml.p4d.24xlarge",
            "--allow-bypass",
            sys.executable,
            "-m",
            "mpi4py",
            "train.py",
            "x",
        ],
    ],
    ids=lambda words: " ".join(word.rpartition("/")[2] for word in words),
)
@pytest.mark.parametrize("launcher", ["here", "mpirun"])
def test_command_lines(launcher: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHOW)
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    done = run([*(mpirun if launcher == "mpirun" else []), *words], tmp_path, SMDP_LOCAL_WORLD_SIZE="2")
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"rank {rank} of 2 True ['x'] __main__" in done.stdout, done.stdout
    has_mpi4py = importlib.util.find_spec("mpi4py") is not None
    needs_mpi4py = launcher == "mpirun" and "mpi4py" in words
    assert done.stderr.count("mpi4py is not installed") == (needs_mpi4py and not has_mpi4py)


def test_it_warns_where_other_hosts_train_apart(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SHOW)
    job = {"SM_CURRENT_HOST": "algo-2", "SM_NUM_GPUS": "1"}
    done = run(["smddprun", "train.py"], tmp_path, SM_HOSTS='["algo-1", "algo-2"]', **job)
    assert done.returncode == 0 and "rank 0 of 1" in done.stdout, done.stderr
    assert "smddprun starts only the ranks of algo-2, so each of the job's 2 hosts" in done.stderr
    done = run(["smddprun", "train.py"], tmp_path, SM_HOSTS='["algo-2"]', **job)
    assert done.returncode == 0 and "of its own" not in done.stderr, done.stderr


def test_wrong_words(tmp_path: Path) -> None:
    done = run(["smddprun"], tmp_path)
    assert done.returncode == 1 and "usage: smddprun" in done.stderr
    done = run(["smddprun", "tran.py"], tmp_path)
    assert done.returncode == 127 and "no such file: tran.py" in done.stderr
    done = run(["smddprun", "train.py"], tmp_path, SMDP_LOCAL_WORLD_SIZE="none")
    assert done.returncode == 2 and "SMDP_LOCAL_WORLD_SIZE='none' is not valid" in done.stderr


@pytest.mark.cluster
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.skipif(not HAS_TOOLKIT, reason="sagemaker-training is not installed")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("script", "more", "kind", "command"),
    [
        (
            SCRIPTS / "smddp_digits.py",
            {"epochs": 40, "sagemaker_distributed_dataparallel_enabled": True},
            "SMDataParallel",
            "smddprun",
        ),
        (
            SCRIPTS.parents[1] / "compat" / "scripts" / "smp_mnist.py",
            {
                "sagemaker_mpi_enabled": True,
                "mp_parameters": {"ddp": True, "partitions": 1, "tensor_parallel_degree": 2},
            },
            "MPI",
            "smddpmprun",
        ),
    ],
    ids=["smddp", "smp"],
)
def test_the_toolkits_own_runner_trains(
    script: Path, more: dict[str, Any], kind: str, command: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not here")
    container = Container(
        tmp_path / "ml",
        script.read_text(),
        hyperparameters={**more, "sagemaker_mpi_num_of_processes_per_host": 2},
    )
    # What it does with distribution={"smdistributed": ...}, but for sshd.
    run_it = f"""
import subprocess
from sagemaker_training import environment, process, runner
env = environment.Environment()
environment.write_env_vars(env.to_env_vars())
it = runner.get(runner.RunnerType.{kind}, env.user_entry_point, env.to_cmd_args(), env.to_env_vars())
command = it._create_command()
if "mpi4py" not in command:
    command += process.ProcessRunner._create_command(it)
print(" ".join(command), flush=True)
assert "{command}" in command and "mpi4py" in command
raise SystemExit(subprocess.run(command, cwd=environment.code_dir).returncode)
"""
    container.variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    del container.variables["SAGEMAKER_BASE_DIR"]
    with Cluster(1, names=["algo-1"]) as cluster:
        # The machine's own name is the host's, else mpirun would ask for ssh; and what the toolkit preloads
        # looks for resourceconfig.json in the real /opt/ml.
        inside = (
            "hostname algo-1 && mount -t tmpfs none /opt && mkdir /opt/ml"
            f' && mount --bind {container.base} /opt/ml && exec "$@"'
        )
        words = ["unshare", "--uts", "sh", "-c", inside, "sh", sys.executable, "-c", run_it]
        process = cluster.start(0, words, container.variables)
        told = process.communicate(timeout=250)[0]
    assert process.returncode == 0, told
    if kind == "MPI":
        assert float(re.findall(r"accuracy ([\d.]+) on 2 ranks", told)[0]) > 0.85
        return
    found = sorted(re.findall(r"accuracy ([\d.]+), rank (\d) of 2, local (\d)", told), key=lambda row: row[1])
    assert [row[1:] for row in found] == [("0", "0"), ("1", "1")], told
    assert float(found[0][0]) > 0.85
    assert (container.base / "model" / "model.pt").is_file()
