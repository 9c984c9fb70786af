"""The SageMaker Python SDK v3: its ModelTrainer runs jobs on smdp, in its local mode; see compose.py."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sagemaker.train", reason="the SageMaker Python SDK v3 is not installed")
sys.path.insert(0, str(Path(__file__).parents[2] / "cluster"))
from containers import SCRIPTS
from network import why_not

import smdp.sagemaker

REASON = why_not()
pytestmark = pytest.mark.filterwarnings("ignore")  # of the SDK and what it imports


def in_containers(test: Any) -> Any:
    for mark in (
        pytest.mark.cluster,
        pytest.mark.skipif(REASON is not None, reason=str(REASON)),
        pytest.mark.timeout(240),
        pytest.mark.usefixtures("docker"),
    ):
        test = mark(test)
    return test


def model_trainer(tmp_path: Path, script: str, hosts: int = 1, **hyperparameters: Any) -> Any:
    import boto3
    from sagemaker.core.helper.session_helper import Session
    from sagemaker.train import ModelTrainer
    from sagemaker.train.configs import Compute, SourceCode
    from sagemaker.train.model_trainer import Mode

    aws = boto3.Session(region_name="eu-west-1", aws_access_key_id="none", aws_secret_access_key="none")
    (tmp_path / "root").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(script)
    return ModelTrainer(
        sagemaker_session=Session(boto_session=aws),
        role="arn:aws:iam::111122223333:role/nobody",
        training_image="this-machine",
        training_mode=Mode.LOCAL_CONTAINER,
        source_code=SourceCode(source_dir=str(tmp_path / "src"), entry_script="train.py"),
        compute=Compute(instance_type="local_cpu", instance_count=hosts),
        distributed=smdp.sagemaker.Smdp(process_count_per_node=2),
        hyperparameters=hyperparameters,
        base_job_name="digits",
        local_container_root=str(tmp_path / "root"),
    )


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "docker"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("compose.py")} "$@"\n')
    program.chmod(0o755)
    # python3 is the one that has smdp, as in an image.
    path = [str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("SMDP_INIT_TIMEOUT", "60")


def test_it_is_one_of_the_sdks_launchers() -> None:
    from sagemaker.train.distributed import DistributedConfig

    launcher = smdp.sagemaker.Smdp(process_count_per_node=8, compat=True)
    assert isinstance(launcher, DistributedConfig)
    assert launcher.model_dump() == {"process_count_per_node": 8, "compat": True}
    assert (Path(launcher.driver_dir) / launcher.driver_script).is_file()
    files = [path.name for path in Path(launcher.driver_dir).iterdir() if path.name != "__pycache__"]
    assert files == ["smdp_driver.py"]  # what is uploaded
    with pytest.raises(ValueError, match="process_count"):
        smdp.sagemaker.Smdp(process_count="8")


def test_the_sdk_takes_the_metric_definitions() -> None:
    from sagemaker.core.shapes import MetricDefinition

    for definition in smdp.sagemaker.METRIC_DEFINITIONS:
        shape = MetricDefinition(name=definition["Name"], regex=definition["Regex"])
        assert len(shape.name) <= 255 and len(shape.regex) <= 500


@pytest.mark.parametrize("hosts", [1, 2])
@in_containers
def test_a_model_trainer_trains(hosts: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    script = (SCRIPTS / "numpy_digits.py").read_text()
    trainer = model_trainer(tmp_path, script, hosts, epochs=40, **{"learning-rate": 0.5})
    trainer.train()
    said = "".join(capfd.readouterr())
    found = re.findall(rf"rank (\d) of {2 * hosts}: accuracy ([\d.]+) on (algo-\d)", said)
    assert len(found) == 2 * hosts, said[-8000:]
    assert {host for _, _, host in found} == {f"algo-{number + 1}" for number in range(hosts)}
    assert all(float(accuracy) > 0.85 for _, accuracy, _ in found)
    assert (tmp_path / "root" / "compressed_artifacts" / "model.tar.gz").is_file()


@in_containers
def test_a_failing_script_fails_the_model_trainer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = "import os, sys\nif os.environ['RANK'] == '1': sys.exit('no shoe has this size')\n"
    with pytest.raises(RuntimeError):
        model_trainer(tmp_path, script).train()
    failure = (tmp_path / "root" / "artifacts" / "output" / "failure").read_text()
    assert failure == "[smdp] rank 1 on algo-1 failed first: exit code 1\nno shoe has this size"
    assert "An error occurred with exit code 1" in "".join(capfd.readouterr())


@in_containers
def test_hyperparameters_come_as_in_other_launchers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = "import json, sys\nprint('got', json.dumps(sys.argv[1:]))"
    model_trainer(tmp_path, script, flag=True, sizes=[1, 2], name="a b").train()
    said = "".join(capfd.readouterr())
    got = json.loads(re.findall(r"got (\[.*\])", said)[0])
    assert got == ["--flag", "true", "--sizes", "[1, 2]", "--name", "a b"]


def test_without_smdp_the_container_says_what_is_missing(tmp_path: Path) -> None:
    launcher = smdp.sagemaker.Smdp()
    script = str(Path(launcher.driver_dir) / launcher.driver_script)
    done = subprocess.run([sys.executable, "-I", "-S", script], capture_output=True, text=True)
    assert done.returncode != 0
    assert "the container cannot import smdp.sagemaker" in done.stderr
    assert "SourceCode(requirements=...)" in done.stderr
