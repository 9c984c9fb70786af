"""Every mistake has an error that names it, before a rank is started, and stands in the failure file."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from containers import HAS_TOOLKIT, Container

HOSTS = ["algo-1", "algo-2"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"SMDP_LOCAL_WORLD_SIZE": "0"}, "SMDP_LOCAL_WORLD_SIZE='0' is not valid; allowed: an integer >= 1"),
        ({"SMDP_LOCAL_WORLD_SIZE": "all"}, "SMDP_LOCAL_WORLD_SIZE='all' is not valid"),
        (
            {"hyperparameters": {"sagemaker_mpi_num_of_processes_per_host": 0}},
            "sagemaker_mpi_num_of_processes_per_host='0' is not valid",
        ),
        ({"current": "algo-7"}, "algo-7' is not valid; allowed: one of algo-1"),
        ({"hosts": []}, "allowed: a JSON list of host names"),
        ({"hosts": ["algo-1", "algo-1"]}, "allowed: a JSON list of host names, each only once"),
        ({"SAGEMAKER_PROGRAM": "tran.py"}, "there is no entry script 'tran.py' in"),
        ({"SAGEMAKER_PROGRAM": "../train.py"}, "the entry script '../train.py' is not in"),
        (
            {"hyperparameters": {"sagemaker_program": ""}},
            "there is no entry script; set SAGEMAKER_PROGRAM or",
        ),
        ({"MASTER_PORT": "seven"}, "MASTER_PORT='seven' is not valid"),
        ({"MASTER_PORT": "65535"}, "smdp also uses the next two"),
        ({"SMDP_TIMEOUT": "soon"}, "SMDP_TIMEOUT='soon' is not valid"),
        ({"SMDP_COMPAT": "banana"}, "SMDP_COMPAT='banana' is not valid; allowed: 1, true, yes, 0, false, no"),
        (
            {"hyperparameters": {"sagemaker_distribution_instance_groups": ["gpus"]}},
            "sagemaker_distribution_instance_groups=\"['gpus']\" is not valid; allowed: names from homog",
        ),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    if "hosts" in change and not change["hosts"]:
        container = Container(tmp_path / "ml", "print('trained')")
        container._write("resourceconfig.json", {"hosts": [], "current_host": "algo-1"})
    else:
        container = Container(tmp_path / "ml", "print('trained')", **change)
    done = container.run()
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert container.failure.startswith("[smdp] ") and message in container.failure
    assert "trained" not in done.stdout


def test_code_in_s3_needs_the_toolkit_and_credentials(tmp_path: Path) -> None:
    where = "s3://bucket/source.tar.gz"
    container = Container(
        tmp_path / "ml",
        "print('trained')",
        hyperparameters={"sagemaker_submit_directory": where},
        AWS_EC2_METADATA_DISABLED="true",
    )
    (container.base / "code" / "train.py").unlink()
    assert container.run().returncode != 0
    assert ("Credential" if HAS_TOOLKIT else f"{where}, which only sagemaker-training can download") in (
        container.failure
    )


@pytest.mark.parametrize("name", ["resourceconfig.json", "hyperparameters.json", "inputdataconfig.json"])
def test_broken_files_are_named(name: str, tmp_path: Path) -> None:
    container = Container(tmp_path / "ml", "print('trained')")
    file = container.base / "input" / "config" / name
    for text in ("{", "[1]"):
        file.write_text(text)
        done = container.run()
        assert done.returncode == 2 and name in container.failure, done.stderr
    file.unlink()
    assert container.run().returncode == (2 if name != "inputdataconfig.json" else 0)


def test_hosts_that_do_not_come_are_named(tmp_path: Path) -> None:
    container = Container(
        tmp_path / "ml",
        "print('trained')",
        hosts=["localhost", "no-such-host.invalid"],
        SMDP_INIT_TIMEOUT="2",
        MASTER_PORT="17370",
    )
    start = time.monotonic()
    done = container.run()
    assert done.returncode == 2 and time.monotonic() - start < 30
    assert "hosts of resourceconfig.json did not connect within 2 s: no-such-host.invalid" in done.stderr
    assert "These names cannot be resolved here: no-such-host.invalid." in container.failure


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ("no-such-host.invalid", "the name no-such-host.invalid cannot be resolved"),
        ("localhost", "localhost does not answer on port 17382"),
    ],
)
def test_a_first_host_that_is_not_there_is_named(first: str, reason: str, tmp_path: Path) -> None:
    container = Container(
        tmp_path / "ml",
        "print('trained')",
        hosts=[first, "algo-2"],
        current="algo-2",
        SMDP_INIT_TIMEOUT="2",
        MASTER_PORT="17380",
    )
    done = container.run()
    assert done.returncode == 2
    assert f"algo-2 could not reach the first host, {first}, within 2 s" in done.stderr
    assert reason in container.failure


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        container = Container(tmp_path / "ml", "", hosts=["localhost", "algo-2"], MASTER_PORT=str(port - 2))
        done = container.run()
    assert done.returncode == 2
    assert f"localhost cannot listen on port {port}, to which other hosts connect" in done.stderr


def test_the_driver_names_a_wrong_setting(tmp_path: Path) -> None:
    container = Container(
        tmp_path / "ml",
        "print('trained')",
        SM_DISTRIBUTED_CONFIG=json.dumps({"process_count_per_node": 0}),
        SM_ENTRY_SCRIPT="train.py",
    )
    done = container.run([sys.executable, "-c", "import smdp.sagemaker.driver_main as it; it.main()"])
    assert done.returncode != 0
    assert "process_count_per_node='0' is not valid; allowed: an integer >= 1" in container.failure
