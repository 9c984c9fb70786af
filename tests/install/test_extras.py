"""The extras, where a Python has wheels of their frameworks, and what is said of versions too old."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from conftest import Release
from pythons import VERSIONS, Venv, cpu_torch, found, text

MakeVenv = Callable[[tuple[int, int]], Venv]


@pytest.fixture(scope="module", params=VERSIONS, ids=text)
def torch_venv(request: pytest.FixtureRequest, make_venv: MakeVenv) -> Venv:
    """Give an environment that has torch for CPUs, so that the extras need not bring it."""
    venv = make_venv(request.param)
    torch = cpu_torch(venv)
    if torch is None:
        pytest.skip(f"PIP_FIND_LINKS names no torch for CPUs and Python {text(request.param)}")
    venv.install("--no-index", "--no-deps", torch)
    venv.install(torch)  # what it depends on
    return venv


@pytest.mark.parametrize(
    ("kind", "extra"),
    [("wheel", "torch"), ("sdist", "torch"), ("wheel", "transformers"), ("wheel", "lightning")],
)
def test_extras_on_torch(torch_venv: Venv, release: Release, kind: str, extra: str) -> None:
    before = torch_venv.works("python", "-c", "import torch; print(torch.__version__)")
    torch_venv.works("pip", "uninstall", "--yes", "smdp")  # pip keeps one of the same version
    torch_venv.install(f"{getattr(release, kind)}[{extra}]")
    assert torch_venv.works("python", "-c", "import torch; print(torch.__version__)") == before
    assert "nvidia" not in torch_venv.works("pip", "list", "--format", "freeze")
    torch_venv.works("pip", "check")
    torch_venv.trains(f"{extra}_job.py")
    torch_venv.trains("numpy_job.py")


@pytest.mark.parametrize(
    ("old", "plugin", "message"),
    [
        ("lightning==2.5.6", "lightning", "Lightning 2.6 or newer, but 2.5.6"),
        ("accelerate==1.11.0", "accelerate", "Accelerate 1.15 or newer, but 1.11.0"),
        ("transformers==4.57.3", "transformers", "transformers 5.23 or newer, but 4.57.3"),
    ],
)
def test_too_old_framework_is_one_line(torch_venv: Venv, old: str, plugin: str, message: str) -> None:
    # The last of this environment: with what they depend on, in place of the new ones.
    torch_venv.install(old)
    extra = "transformers" if plugin == "accelerate" else plugin
    done = torch_venv.run("python", "-c", f"import smdp.{plugin}")
    assert done.returncode == 1
    line = f'ImportError: [smdp] smdp.{plugin} requires {message} is installed: pip install "smdp[{extra}]"'
    assert done.stderr.splitlines()[-1] == line


@pytest.fixture(scope="module", params=VERSIONS, ids=text)
def tensorflow_venv(request: pytest.FixtureRequest, release: Release, make_venv: MakeVenv) -> Venv:
    """Give an environment with the wheel and the newest TensorFlow for CPUs that has wheels."""
    venv = make_venv(request.param)
    done = venv.run("pip", "install", "--quiet", "--only-binary", "tensorflow-cpu", "tensorflow-cpu>=2.13")
    if "No matching distribution" in done.stderr:
        pytest.skip(f"tensorflow-cpu has no wheel for Python {text(request.param)}")
    assert done.returncode == 0, done.stderr
    venv.install(release.wheel)
    return venv


def test_tensorflow(tensorflow_venv: Venv) -> None:
    tensorflow_venv.works("pip", "check")
    tensorflow_venv.trains("tensorflow_job.py")
    tensorflow_venv.trains("numpy_job.py")


def chosen(venv: Venv, requirement: str) -> dict[str, str]:
    """Give the versions that pip would install."""
    venv.install("--upgrade", "pip")  # reads the index's metadata instead of downloading
    venv.install("--dry-run", "--report", "report.json", requirement)
    report = json.loads((venv.folder / "report.json").read_text())
    return {item["metadata"]["name"]: item["metadata"]["version"] for item in report["install"]}


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_extra_of_tensorflow_resolves_to_tensorflow_without_cuda(
    release: Release, make_venv: MakeVenv, kind: str
) -> None:
    venv = make_venv(max(version for version in found() if version <= (3, 13)))
    versions = chosen(venv, f"{getattr(release, kind)}[tensorflow]")
    assert "tensorflow" in versions and "smdp" in versions
    assert not [name for name in versions if name.startswith(("nvidia", "torch"))]
    assert tuple(int(part) for part in versions["tensorflow"].split(".")[:2]) >= (2, 13)


def test_extra_of_tensorflow(release: Release, make_venv: MakeVenv) -> None:
    # On one Python: tensorflow is larger than tensorflow-cpu, on which the others run.
    venv = make_venv((3, 11))
    venv.install(f"{release.wheel}[tensorflow]")
    venv.works("pip", "check")
    venv.trains("tensorflow_job.py")


def test_extra_of_sagemaker(release: Release, make_venv: MakeVenv) -> None:
    # On one Python: over a hundred packages, mlflow among them. tox -e sagemaker starts jobs with them.
    venv = make_venv((3, 11))
    venv.install(f"{release.wheel}[sagemaker]")
    venv.works("pip", "check")
    code = "from smdp.sagemaker import Smdp; print([base.__module__ for base in Smdp.__mro__])"
    assert "sagemaker.train.distributed" in venv.works("python", "-c", code)


def test_too_old_tensorflow_is_one_line(release: Release, make_venv: MakeVenv) -> None:
    venv = make_venv((3, 11))
    venv.install("tensorflow-cpu==2.12.1")
    venv.install("--no-deps", release.wheel)
    venv.install("nanobind-backend", "typer", "rich")
    done = venv.run("python", "-c", "import smdp.tensorflow")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: [smdp] smdp.tensorflow requires TensorFlow 2.13 or newer, but 2.12.1 is installed:"
        ' pip install "smdp[tensorflow]"'
    )
