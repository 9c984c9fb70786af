"""The wheel, in a fresh environment of every Python that is here, by the pip that came with it."""

from __future__ import annotations

import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from conftest import Release
from pythons import VERSIONS, Venv, clean_environment, text

# What the wheel holds besides the packages, and how big it may get before somebody asks why.
TOP_LEVEL = {"smdp", "smdp_compat", "smdp_compat.pth", "smdp_torch_autoload"}
LARGEST_MB = 4


@pytest.fixture(scope="module", params=VERSIONS, ids=text)
def venv(
    request: pytest.FixtureRequest, release: Release, make_venv: Callable[[tuple[int, int]], Venv]
) -> Venv:
    made = make_venv(request.param)
    made.install(release.wheel)
    return made


def test_dependencies_fit_together(venv: Venv) -> None:
    venv.works("pip", "check")
    installed = venv.works("pip", "list", "--format", "freeze").lower()
    for framework in ("torch", "tensorflow", "transformers", "accelerate", "lightning"):
        assert f"\n{framework}==" not in installed


def test_two_ranks_work(venv: Venv) -> None:
    venv.trains("numpy_job.py")


def test_import_needs_no_framework(venv: Venv) -> None:
    names = "smdp smdp.pipeline smdp.plan smdp.memory smdp.partition smdp.sharding smdp.placement smdp.config"
    venv.works("python", "-W", "error", "-c", f"import {names.replace(' ', ', ')}; smdp.init().barrier()")


def test_commands_work(venv: Venv) -> None:
    assert venv.works("python", "-m", "smdp", "--version") == venv.works("smdp", "--version")
    assert "Usage: smdp" in venv.works("python", "-m", "smdp", "--help")
    assert "kernel" in venv.works("smdp", "env")
    assert "makespan" in venv.works("smdp", "schedule", "show", "1f1b")
    assert "all_reduce" in venv.works("smdp", "bench", "all_reduce", "-e", "4K", "--iters", "2")


def test_help_costs_little(venv: Venv) -> None:
    # Processor time, which says more than the clock; on busy cores it takes half as much again.
    def cost_s() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [venv.folder / "bin" / "smdp", "--help"], env=clean_environment(), stdout=-3, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    assert min(cost_s() for _ in range(10)) < 0.3


@pytest.mark.parametrize(
    ("plugin", "title", "extra"),
    [
        ("torch", "PyTorch", "torch"),
        ("tensorflow", "TensorFlow", "tensorflow"),
        ("transformers", "transformers", "transformers"),
        ("accelerate", "Accelerate", "transformers"),
        ("lightning", "Lightning", "lightning"),
    ],
)
def test_plugin_without_its_framework_is_one_line(venv: Venv, plugin: str, title: str, extra: str) -> None:
    done = venv.run("python", "-c", f"import smdp.{plugin}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: [smdp] smdp.{plugin} requires {title}, which is not installed:"
        f' pip install "smdp[{extra}]"'
    )


def test_launcher_of_the_sagemaker_sdk_without_the_sdk_is_one_line(venv: Venv) -> None:
    # The rest of smdp.sagemaker is for containers, which have no SDK.
    venv.works("python", "-c", "import smdp.sagemaker; smdp.sagemaker.main")
    done = venv.run("python", "-c", "from smdp.sagemaker import Smdp")
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith(
        "ImportError: [smdp] smdp.sagemaker.Smdp needs the SageMaker Python SDK v3 (No module"
    )
    assert line.endswith("; pip install 'smdp[sagemaker]'")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("all_reduce --against gloo", "--against='gloo' requires torch"),
        ("all_reduce --against openmpi", "--against='openmpi' requires mpi4py"),
        ("all_reduce --dtype bfloat16", "--dtype='bfloat16' requires ml_dtypes"),
        ("ddp", "operation='ddp' requires torch"),
    ],
)
def test_benchmark_of_what_is_missing_is_one_line(venv: Venv, arguments: str, message: str) -> None:
    done = venv.run("smdp", "bench", *arguments.split())
    assert done.returncode == 2
    assert done.stderr.startswith(f"smdp bench: {message}, which is not installed: pip install ")
    assert len(done.stderr.splitlines()) == 1


def test_uninstall_leaves_nothing(venv: Venv) -> None:
    # The last of this environment.
    venv.works("pip", "uninstall", "--yes", "smdp")
    left = [path for path in venv.folder.rglob("*smdp*") if path.suffix != ".pyc" and not path.is_dir()]
    assert not left


def test_files_of_the_wheel(release: Release) -> None:
    with zipfile.ZipFile(release.wheel) as wheel:
        names = wheel.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == TOP_LEVEL
    wrong = [name for name in names if name.endswith((".pyc", ".cpp", ".a", ".o")) or "/test_" in name]
    assert not wrong
    headers = {name for name in names if name.endswith(".h")}
    assert headers and all(name.startswith("smdp/include/smdp/") for name in headers)
    libraries = sorted(name for name in names if ".so" in name)
    assert libraries == ["smdp/_core.abi3.so", "smdp/libsmdp.so", "smdp/tensorflow/libsmdp_tensorflow.so"]
    assert {"smdp/py.typed", "smdp/_core.pyi"} <= set(names)
    assert "-cp310-abi3-" in release.wheel.name
    size_mb = release.wheel.stat().st_size / 1e6
    print(f"the wheel has {size_mb:.1f} MB")
    assert size_mb < LARGEST_MB
