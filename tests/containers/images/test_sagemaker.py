"""The target sagemaker: what SageMaker's two SDKs start in it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from buildah import ROOT, Storage
from container import Container
from image import Image, build
from jobs import ENVIRON, JOBS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
MAKE = Callable[..., Container]


@pytest.fixture(scope="session")
def sagemaker(image: Image, storage: Storage, base: str) -> Iterator[Image]:
    found = build(storage, image.name, "sagemaker", f"smdp-{image.name}-sagemaker", BASE_IMAGE=base)
    yield found
    storage.remove(found.tag)


def test_what_the_sdk_looks_for(sagemaker: Image, containers: MAKE) -> None:
    assert sagemaker.config["User"] == "0"
    assert "SAGEMAKER_TRAINING_MODULE=smdp.sagemaker:main" in sagemaker.config["Env"]
    for folder in ("input/data", "model", "output", "code"):
        assert (sagemaker.root / "opt/ml" / folder).is_dir()
    code, output = containers(sagemaker).run(
        "bash", "-c", "command -v train python3 mpirun /usr/sbin/sshd && python3 -c 'import mpi4py' && id -u"
    )
    assert code == 0, output
    assert output.split()[-1] == "0"


def test_no_compiler_and_no_key(sagemaker: Image) -> None:
    root = sagemaker.root
    assert not [
        path for path in root.glob("usr/bin/*") if path.name in ("gcc", "g++", "cc", "c++", "ld", "as")
    ]
    assert list((root / "etc/ssh").glob("ssh_host_*")) == []
    assert not (root / "root/.ssh").exists()


def test_sshd_as_version_3_starts_it(sagemaker: Image, containers: MAKE, tmp_path: Path) -> None:
    """Past the entry point, by its path; the key is made at start, and mpirun's ssh can log in."""
    script = (
        "sed -i 's/^Port .*/Port 2022/' /opt/smdp/sshd_config; /usr/sbin/sshd -D & "
        "for _ in $(seq 100); do "
        "ssh -p 2022 localhost 'id -un; command -v mpirun python3' && exit; sleep 0.1; "
        "done; exit 1"
    )
    code, output = containers(sagemaker).run("bash", "-c", script, entrypoint=False)
    assert code == 0, output
    assert output.endswith("root\n/usr/bin/mpirun\n/opt/smdp/venv/bin/python3\n")


def test_health(sagemaker: Image, containers: MAKE) -> None:
    test = sagemaker.config["Healthcheck"]["Test"]
    assert containers(sagemaker).run(*test[1:], entrypoint=False) == (0, "")


def job_folder(folder: Path, name: str) -> Path:
    """The files that SageMaker lays in /opt/ml: the image's job on digits, on one host."""
    for each in ("input/config", "input/data/training", "model", "output/data", "code"):
        (folder / each).mkdir(parents=True)
    script = (
        f"import runpy, sys\nprint('learns', flush=True)\nsys.argv = {JOBS[name]}\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    (folder / "code" / "train.py").write_text(script)
    resources = {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "lo"}
    settings = {"sagemaker_program": "train.py", "sagemaker_submit_directory": "/opt/ml/code"}
    for file, content in {
        "resourceconfig": resources,
        "hyperparameters": {key: json.dumps(value) for key, value in settings.items()},
        "inputdataconfig": {"training": {"TrainingInputMode": "File"}},
    }.items():
        (folder / "input/config" / f"{file}.json").write_text(json.dumps(content))
    return folder


def test_train_runs_two_ranks_on_digits(
    sagemaker: Image, containers: MAKE, site: Path, tmp_path: Path
) -> None:
    """The container argument `train`: SageMaker's toolkit hands over to smdp.sagemaker."""
    ml = job_folder(tmp_path / "ml", sagemaker.name)
    container = containers(sagemaker, volumes={"/opt/ml": ml, "/repository": ROOT, "/site": site})
    environ = {**ENVIRON, "SMDP_LOCAL_WORLD_SIZE": "2"}
    code, output = container.run("train", environ=environ, timeout_s=1800)
    print(output)
    assert code == 0, output
    assert sorted(re.findall(r"^\[rank (\d)\] learns$", output, re.MULTILINE)) == ["0", "1"], output
    assert not (ml / "output" / "failure").exists()
