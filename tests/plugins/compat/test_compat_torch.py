"""Scripts for SMDDP and Horovod on PyTorch, as their documentation tells users to write them, unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest
from launchers import check, pairs, start
from snippets import passes

pytest.importorskip("torch")
pytest.importorskip("sklearn")

LAUNCHERS = ["smdp run", "torchrun", "mpirun", "mpirun and a variable"]
SCRIPTS = ["smddp_torch_old.py", "smddp_torch_backend.py", "horovod_torch.py"]


@pytest.mark.parametrize(("launcher", "script"), pairs(LAUNCHERS, SCRIPTS))
def test_script(launcher: str, script: str) -> None:
    check(launcher, script)


@pytest.mark.parametrize(
    ("launcher", "words"), [("torchrun", []), pytest.param("smdp run", ["use_cpu"], marks=pytest.mark.slow)]
)
def test_unmodified_trainer(launcher: str, words: list[str], tmp_path: Path) -> None:
    """The released transformers and accelerate take their own path for SMDDP, on two CPUs."""
    pytest.importorskip("transformers")
    check(launcher, "transformers_unmodified.py", str(tmp_path), *words)


# In a training job of SageMaker that `accelerate launch` has started, by the variables it sets there.
LAUNCHED = {"ACCELERATE_USE_SAGEMAKER": "true", "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE": "DATA_PARALLEL"}


@pytest.mark.parametrize("variables", [{}, pytest.param(LAUNCHED, marks=pytest.mark.slow)])
def test_accelerate(variables: dict[str, str]) -> None:
    pytest.importorskip("accelerate")
    check("smdp run", "accelerate_smddp.py", **variables)


def test_accelerate_by_name() -> None:
    pytest.importorskip("accelerate")
    done = start("smdp run", "accelerate_smddp_by_name.py")
    assert done.returncode == 0, done.stderr[-6000:]
    assert "all is right on 2 ranks" in done.stdout


@pytest.mark.slow
def test_plugin_on_the_trainers_path(tmp_path: Path) -> None:
    """There Accelerate wraps the model as elsewhere, with the plugin and all that the arguments ask for."""
    pytest.importorskip("transformers")
    check("smdp run", "transformers_plugin.py", str(tmp_path))


def test_lightning() -> None:
    pytest.importorskip("lightning")
    check("smdp run", "lightning_smddp.py")


@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ("smdp run", ["horovod_torch_names.py"]),
        ("mpirun", ["smddp_torch_names.py"]),
        ("smdp run", ["horovod_torch_sparse.py"]),
        *(
            pytest.param(launcher, words, marks=pytest.mark.slow)
            for launcher, words in [
                ("smdp run", ["horovod_torch_names.py", "as-on-gpu"]),
                ("smdp run", ["horovod_torch_sparse.py", "as-on-gpu"]),
                ("smdp run", ["horovod_torch_compressors.py"]),
                ("smdp run", ["smddp_torch_names.py"]),
                ("mpirun", ["horovod_torch_names.py"]),
            ]
        ),
    ],
)
def test_names(launcher: str, words: list[str]) -> None:
    done = start(launcher, *words)
    assert done.returncode == 0, done.stderr[-6000:]
    assert "all is right on 2 ranks" in done.stdout


def test_sums_by_address_over_another_backend() -> None:
    passes(
        "import smddpcommon, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "x = torch.ones(1)\n"
        "try:\n"
        "    smddpcommon.allReduce(x.data_ptr(), x.data_ptr(), smddpcommon.herringFloat32, 1, 0, 1, 0)\n"
        "except RuntimeError as error:\n"
        "    assert \"started over 'gloo'; sums by address need\" in str(error), error\n"
        "else:\n"
        "    raise SystemExit('gloo must fail')\n",
        SMDP_COMPAT="1",
    )
