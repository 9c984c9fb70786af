"""The training contract on one host: what a script finds, and what is left behind."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from containers import ALONE, HAS_TOOLKIT, TOOLKIT, Container

from smdp import ConfigError
from smdp.sagemaker.entry_script import EntryScript

# Jobs import NumPy and scikit-learn on every rank, which takes half a minute where cores are scarce.
pytestmark = pytest.mark.timeout(400)
RUNNERS = [
    pytest.param(ALONE, id="alone"),
    pytest.param(
        TOOLKIT,
        id="toolkit",
        marks=pytest.mark.skipif(not HAS_TOOLKIT, reason="sagemaker-training is not installed"),
    ),
]
SHOW = """
import json, os, sys
place = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SMDP_LOCAL_WORLD_SIZE")]
with open(os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], f"rank{place[0]}.json"), "w") as file:
    json.dump([place, sys.argv, os.getcwd(), dict(os.environ)], file)
"""


def shown(container: Container, rank: int = 0) -> list[Any]:
    file = container.base / "output" / "data" / f"rank{rank}.json"
    return json.loads(file.read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("runner", RUNNERS)
def test_ranks_get_their_place_arguments_and_variables(runner: list[str], tmp_path: Path) -> None:
    hyperparameters = {"epochs": 3, "name": "digits", "b": True, "sizes": {"z": 1, "a": 2}, "nothing": None}
    container = Container(tmp_path / "ml", SHOW, hyperparameters=hyperparameters, SMDP_LOCAL_WORLD_SIZE="2")
    done = container.run(runner)
    assert done.returncode == 0, done.stderr
    assert "[smdp] algo-1, host 1 of 1, runs ranks 0 to 1 of 2" in done.stderr
    for rank in (0, 1):
        place, argv, cwd, environ = shown(container, rank)
        assert place == [str(rank), "2", str(rank), "2"]
        assert argv[1:] == [
            *("-b", "True", "--epochs", "3", "--name", "digits", "--nothing", ""),
            *("--sizes", "a=2,z=1"),
        ]
        assert cwd == str(container.base / "code")
        assert environ["SM_HP_EPOCHS"] == "3"
        assert environ["SM_HP_NAME"] == "digits"
        assert json.loads(environ["SM_HPS"]) == hyperparameters
        assert environ["SM_CHANNEL_TRAIN"] == str(container.base / "input" / "data" / "train")
        assert environ["SM_MODEL_DIR"] == str(container.base / "model")
    assert not container.failure


@pytest.mark.skipif(not HAS_TOOLKIT, reason="sagemaker-training is not installed")
def test_variables_and_arguments_are_those_of_the_toolkit(tmp_path: Path) -> None:
    hyperparameters = {
        "epochs": 3,
        "rate": 0.1,
        "list": [1, "a"],
        "x": None,
        "d": {"k": True},
        "text": "a b'c",
        "sagemaker_mpi_enabled": True,
        "_tuning_objective_metric": "loss",
    }
    container = Container(tmp_path / "ml", SHOW, hyperparameters=hyperparameters)
    (container.base / "input" / "config" / "inputdataconfig.json").write_text('{"test": {}, "train": {}}')
    assert container.run(TOOLKIT).returncode == 0
    _, argv, _, ours = shown(container)
    ask = (
        "import json; from sagemaker_training.environment import Environment;"
        "e = Environment(); print(json.dumps([e.to_env_vars(), e.to_cmd_args()]))"
    )
    answer = container.run([sys.executable, "-c", ask])
    theirs, arguments = json.loads(answer.stdout.splitlines()[-1])
    assert argv[1:] == arguments
    for name in sorted(set(theirs) - {"SM_TRAINING_ENV"}):
        assert ours.get(name) == theirs[name], name
    environment = json.loads(ours["SM_TRAINING_ENV"])
    for name, value in json.loads(theirs["SM_TRAINING_ENV"]).items():
        if name in environment:
            assert environment[name] == value, name
    assert {"hosts", "hyperparameters", "channel_input_dirs", "additional_framework_parameters"} <= set(
        environment
    )


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_job_trains_saves_and_goes_on(runner: list[str], tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    container = Container(
        tmp_path / "ml", "numpy_digits.py", hyperparameters={"epochs": 20}, SMDP_LOCAL_WORLD_SIZE="2"
    )
    (container.base / "checkpoints").mkdir()
    done = container.run(runner)
    assert done.returncode == 0, done.stderr
    assert "going on" not in done.stdout
    again = Container(
        tmp_path / "again", "numpy_digits.py", hyperparameters={"epochs": 60}, SMDP_LOCAL_WORLD_SIZE="2"
    )
    (container.base / "checkpoints").rename(again.base / "checkpoints")
    done = again.run(runner)
    assert done.returncode == 0, done.stderr
    assert "going on with epoch 20" in done.stdout
    accuracies = re.findall(r"rank \d of 2: accuracy ([\d.]+) on algo-1", done.stdout)
    assert len(accuracies) == 2 and float(accuracies[0]) > 0.85
    assert (again.base / "model" / "weights.npy").is_file()
    assert json.loads((again.base / "output" / "data" / "accuracy.json").read_text()) > 0.85
    if runner is TOOLKIT:
        assert (again.base / "output" / "success").is_file()


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_first_failing_rank_gives_the_code_and_the_reason(runner: list[str], tmp_path: Path) -> None:
    script = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.stderr.write("left shoe\\n" * 400 + "the right one is missing\\n")
    sys.exit(41)
time.sleep(60)
"""
    container = Container(tmp_path / "ml", script, SMDP_LOCAL_WORLD_SIZE="2")
    done = container.run(runner)
    assert done.returncode == 41
    assert container.failure.startswith("[smdp] rank 1 on algo-1 failed first: exit code 41\nleft shoe\n")
    assert container.failure.endswith("the right one is missing")
    assert 900 < len(container.failure.encode()) <= 1024


def test_a_rank_that_only_lost_its_peer_is_not_named(tmp_path: Path) -> None:
    script = """
import numpy as np, smdp, sys
world = smdp.init()
if world.rank == 1:
    raise ValueError("no such label: 10")
world.all_reduce(np.ones(4))
"""
    container = Container(tmp_path / "ml", script, SMDP_LOCAL_WORLD_SIZE="2")
    assert container.run().returncode == 1
    assert "no such label: 10" in container.failure


def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    script = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    container = Container(tmp_path / "ml", script)
    assert container.run().returncode == 137
    assert container.failure == (
        "[smdp] rank 0 on algo-1 failed first: killed by SIGKILL, which the kernel sends if memory runs out"
    )


STOPPED = """
import os, signal, sys, time
def stop(*_):
    time.sleep(0.2 + int(os.environ["RANK"]))
    open(os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], "saved" + os.environ["RANK"]), "w").close()
    sys.exit(CODE)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
while True:
    time.sleep(0.1)  # a signal that comes right before a sleep does not end it
"""


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("code", [0, 75])
def test_sigterm_reaches_the_ranks_and_their_code_comes_back(
    runner: list[str], code: int, tmp_path: Path
) -> None:
    script = STOPPED.replace("CODE", str(code))
    container = Container(tmp_path / "ml", script, SMDP_LOCAL_WORLD_SIZE="2")
    process = container.start(runner)
    assert process.stdout is not None
    ready = 0
    while ready < 2:
        line = process.stdout.readline()
        assert line, "it ended early"
        ready += "ready" in line
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == code
    saved = sorted(path.name for path in (container.base / "output" / "data").iterdir())
    assert saved == ["saved0", "saved1"]
    assert ("asks to be started again: exit code 75" in container.failure) == (code == 75)


@pytest.mark.parametrize("runner", RUNNERS)
def test_what_a_shell_script_has_started_saves_after_sigterm(runner: list[str], tmp_path: Path) -> None:
    # The shell dies of SIGTERM at once; saving takes longer than ranks are given after a failure.
    container = Container(
        tmp_path / "ml", 'echo shell; "$PYTHON" train.py; echo never', program="run.sh", PYTHON=sys.executable
    )
    (container.base / "code" / "train.py").write_text(
        STOPPED.replace("time.sleep(0.2", "time.sleep(7").replace("CODE", "75")
    )
    process = container.start(runner)
    assert process.stdout is not None
    told = ""
    while "ready" not in told:
        line = process.stdout.readline()
        assert line, f"it ended early:\n{told}"
        told += line
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM  # the shell's; with exec it would be 75
    assert (container.base / "output" / "data" / "saved0").is_file()


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("program", "script"),
    [
        ("run.sh", 'python3 -c "import sys; print(sys.argv[1:])" "$@"; echo shell; pwd'),
        ("bin/run.sh", '#!/bin/sh\necho shell "$@"; pwd'),
    ],
)
def test_a_shell_script(runner: list[str], program: str, script: str, tmp_path: Path) -> None:
    container = Container(tmp_path / "ml", script, program=program, hyperparameters={"text": "a b'c"})
    done = container.run(runner)
    assert done.returncode == 0, done.stderr
    assert "shell" in done.stdout and "a b'c" in done.stdout.replace('"', "")
    assert str(container.base / "code") in done.stdout
    assert (container.base / "code" / program).stat().st_mode & stat.S_IXUSR


def test_a_program_in_a_folder_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    file = tmp_path / "run.sh"
    file.write_text("echo shell")
    script = EntryScript("run.sh", str(tmp_path), str(tmp_path))
    monkeypatch.setattr(os, "chmod", refuse)
    with pytest.raises(ConfigError, match=r"run.sh is not executable.*Read-only file system.*chmod \+x"):
        script.command([])
    monkeypatch.undo()
    file.chmod(0o555)
    monkeypatch.setattr(os, "chmod", refuse)
    assert script.command(["a"])[-2:] == [str(file), "a"]


def test_a_module(tmp_path: Path) -> None:
    container = Container(tmp_path / "ml", "from job import steps", program="job/train.py")
    (container.base / "code" / "job" / "__init__.py").touch()
    (container.base / "code" / "job" / "steps.py").write_text("print('as a package')")
    container.variables["SAGEMAKER_PROGRAM"] = "job.train"
    done = container.run()
    assert done.returncode == 0, done.stderr
    assert "as a package" in done.stdout


def test_ranks_per_host(tmp_path: Path) -> None:
    show = "import os; print('world', os.environ['WORLD_SIZE'])"
    for number, (hyperparameters, variables, ranks) in enumerate(
        [
            ({}, {}, 1),
            ({}, {"SM_NUM_GPUS": "3"}, 3),
            ({"sagemaker_mpi_num_of_processes_per_host": 2}, {"SM_NUM_GPUS": "3"}, 2),
            ({"sagemaker_mpi_num_of_processes_per_host": 2}, {"SMDP_LOCAL_WORLD_SIZE": "4"}, 4),
        ]
    ):
        container = Container(
            tmp_path / str(number),
            show,
            hyperparameters=hyperparameters,
            **variables,  # type: ignore[arg-type]
        )
        assert container.run().stdout.count(f"world {ranks}\n") == ranks


def test_a_host_outside_of_the_distribution_runs_the_script_alone(tmp_path: Path) -> None:
    groups = [
        {"instance_group_name": "gpus", "instance_type": "ml.p4d.24xlarge", "hosts": ["algo-1", "algo-2"]},
        {"instance_group_name": "cpus", "instance_type": "ml.c5.xlarge", "hosts": ["algo-3"]},
    ]
    container = Container(
        tmp_path / "ml",
        "import os; print('world', os.environ['WORLD_SIZE'])",
        hosts=["algo-1", "algo-2", "algo-3"],
        current="algo-3",
        resources={"current_group_name": "cpus", "instance_groups": groups},
        hyperparameters={"sagemaker_distribution_instance_groups": ["gpus"], "sagemaker_mpi_enabled": True},
        SMDP_LOCAL_WORLD_SIZE="4",
    )
    done = container.run()
    assert done.stdout == "[rank 0] world 1\n"
    assert "algo-3 is in none of the instance groups of the distribution" in done.stderr


@pytest.mark.parametrize("name", ["mp_parameters", "sagemaker_distributed_dataparallel_enabled"])
def test_scripts_for_amazons_libraries_are_let_in(name: str, tmp_path: Path) -> None:
    script = (
        "import importlib.util, os\n"
        "found = importlib.util.find_spec('smdistributed') is not None\n"
        "print('found', found, os.environ['SM_FRAMEWORK_PARAMS'])"
    )
    value = True if name.startswith("sagemaker_") else {"partitions": 2}
    container = Container(tmp_path / "ml", script, hyperparameters={name: value})
    assert "found True" in container.run().stdout
    container.variables["SMDP_COMPAT"] = "no"
    assert "found False" in container.run().stdout
    container.variables["SMDP_COMPAT"] = "yes"
    assert "found True" in container.run().stdout
    other = Container(tmp_path / "other", script, SMDP_COMPAT="true")
    assert "found True" in (told := other.run().stdout)
    assert '"sagemaker_distributed_dataparallel_enabled": true' in told


def test_requirements_are_installed_without_the_toolkit(tmp_path: Path) -> None:
    container = Container(tmp_path / "ml", "print('trained')")
    (container.base / "code" / "requirements.txt").write_text("-r no-such-file.txt\n")
    done = container.run()
    assert done.returncode != 0 and "trained" not in done.stdout
    assert "pip" in container.failure or "requirements.txt" in container.failure
    (container.base / "code" / "requirements.txt").write_text("pip\n")
    assert "trained" in container.run().stdout


def test_importing_it_needs_no_sdk_and_no_framework() -> None:
    code = (
        "import sys, smdp.sagemaker\n"
        "heavy = {'sagemaker', 'sagemaker_training', 'torch', 'tensorflow', 'boto3'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
