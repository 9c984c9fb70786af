"""The finder: what resolves, what is refused, and that it can be taken back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRON = {
    name: value for name, value in os.environ.items() if not name.startswith(("SMDP_", "SM_", "SMDATA"))
}


def python(
    code: str, *, path: Path | None = None, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    environ = {**ENVIRON, **variables, **({"PYTHONPATH": str(path)} if path else {})}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environ,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def passes(code: str, cwd: Path | None = None, **variables: str) -> None:
    done = python(code, cwd=cwd, **variables)
    assert done.returncode == 0, done.stderr


def test_off_by_default() -> None:
    passes(
        "import sys, importlib.util\n"
        "assert 'smdp_compat' not in sys.modules\n"
        "assert importlib.util.find_spec('smdistributed') is None"
    )


@pytest.mark.parametrize(
    ("value", "is_on"), [("1", True), ("true", True), (" Yes ", True), ("0", False), ("no", False)]
)
def test_words_of_the_variable(value: str, is_on: bool, tmp_path: Path) -> None:
    passes(
        f"import sys; assert ('smdp_compat' in sys.modules) == {is_on}, 'wrong'", tmp_path, SMDP_COMPAT=value
    )


def test_install_and_uninstall(tmp_path: Path) -> None:
    passes(
        "import os, sys, importlib.util, json\n"
        "import smdp.compat\n"
        "before = dict(os.environ), list(sys.meta_path)\n"
        "smdp.compat.install(); smdp.compat.install()\n"
        "assert smdp.compat.is_installed()\n"
        "assert importlib.util.find_spec('smdistributed') is not None\n"
        "assert json.loads(os.environ['SM_FRAMEWORK_PARAMS'])['sagemaker_distributed_dataparallel_enabled']\n"
        "assert os.environ['SMDATAPARALLEL_LOCAL_RANK'] == '1'\n"
        "assert os.path.isdir(os.environ['SM_MODEL_DIR'])\n"
        "import smdistributed.dataparallel.exceptions as exceptions, smdp\n"
        "assert exceptions.SMDDPError is smdp.SmdpError\n"
        "import smdistributed.dataparallel\n"
        "assert smdistributed.dataparallel._get_id_for_herring_task() == 0\n"
        "smdp.compat.uninstall(); smdp.compat.uninstall()\n"
        "assert (dict(os.environ), list(sys.meta_path)) == before\n"
        "assert importlib.util.find_spec('smdistributed') is None\n"
        "assert not [name for name in sys.modules if name.startswith('smdistributed')]",
        tmp_path,
        RANK="1",
        LOCAL_RANK="1",
        WORLD_SIZE="2",
        LOCAL_WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29501",
    )


def test_process_that_no_launcher_started(tmp_path: Path) -> None:
    """A launcher, for one, whose children must not inherit a local rank; and half a job's variables."""
    passes(
        "import os\n"
        "assert 'SMDATAPARALLEL_LOCAL_RANK' not in os.environ and 'SM_FRAMEWORK_PARAMS' not in os.environ\n"
        "assert 'SM_MODEL_DIR' in os.environ",
        tmp_path,
        SMDP_COMPAT="1",
    )
    mpirun_5 = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    done = python("import smdistributed.dataparallel", cwd=tmp_path, SMDP_COMPAT="1", **mpirun_5)
    assert done.returncode == 0 and done.stderr == ""


def test_folder_of_the_name(tmp_path: Path) -> None:
    """A user's folder called horovod is not Horovod."""
    (tmp_path / "horovod").mkdir()
    done = python("import horovod; assert horovod.__version__", path=tmp_path, SMDP_COMPAT="1")
    assert done.returncode == 0, done.stderr


def test_processes_that_a_job_starts() -> None:
    """Spawned workers, too, of which nobody runs a line before they unpickle."""
    passes(
        "import multiprocessing, importlib.util\n"
        "import smdp.compat\n"
        "smdp.compat.install()\n"
        "with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "    assert pool.apply(importlib.util.find_spec, ('smdistributed',)) is not None"
    )


def test_amazons_own_is_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "smdistributed").mkdir()
    (tmp_path / "smdistributed" / "__init__.py").touch()
    done = python("import smdp.compat; smdp.compat.install()", path=tmp_path)
    assert "[smdp] Amazon's smdistributed is installed" in done.stderr
    done = python("import json, smdistributed.dataparallel", path=tmp_path, SMDP_COMPAT="1")
    assert "switch SMDP_COMPAT off" in done.stderr


def test_installed_horovod_is_taken(tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("is_theirs = True\n")
    done = python("import horovod; assert horovod.is_theirs", path=tmp_path, SMDP_COMPAT="1")
    assert done.returncode == 0, done.stderr


def test_what_is_not_there_says_so() -> None:
    done = python("import smdistributed.modelparallel.tensorflow as smp", SMDP_COMPAT="1")
    assert "comes later" in done.stderr
    done = python(
        "import smdistributed.modelparallel as m; assert m.__version__ == '1.15.0'", SMDP_COMPAT="1"
    )
    assert done.returncode == 0, done.stderr
    done = python("import smdistributed.no_such_module", SMDP_COMPAT="1")
    assert "No module named 'smdistributed.no_such_module'" in done.stderr


def test_names_of_large_scripts_can_be_imported() -> None:
    """At their top they import what they may never use."""
    pytest.importorskip("torch")
    done = python(
        "import smdistributed.modelparallel.torch as smp;"
        "smp.optimizers.FusedLAMB, smp.patches.checkpoint.checkpoint, smp.utils.rmsg, smp.state_mod.state;"
        "from smdistributed.modelparallel.torch.amp import GradScaler;"
        "from smdistributed.modelparallel.torch.model import DistributedModel;"
        "from smdistributed.modelparallel.torch.state_mod import state;"
        "from smdistributed.modelparallel.torch.utils import get_distribution_axis;"
        "from smdistributed.modelparallel.torch.patches.checkpoint import checkpoint_sequential;"
        "import smdistributed.modelparallel.torch.nn.huggingface.bert;"
        "from smdistributed.modelparallel.torch.nn.huggingface.gpt2 import translate_state_dict_to_hf_gpt2;"
        "from smdistributed.modelparallel.torch.optimizers import FusedAdam;"
        "assert not hasattr(smp.optimizers, 'FusedAdem');"
        "FusedAdam([])",
        SMDP_COMPAT="1",
    )
    assert "smp.optimizers.FusedAdam belongs to fused optimizers, which comes later" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "usage:"),
        (["nowhere.py"], "no such file: nowhere.py"),
        (["-m"], "the name of a module is missing"),
    ],
)
def test_command_line(words: list[str], text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "smdp.compat", *words], capture_output=True, text=True, timeout=60, env=ENVIRON
    )
    assert done.returncode != 0 and text in done.stderr


def test_script_sees_its_own_arguments(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, importlib.util, beside\n"
        "assert __name__ == '__main__' and sys.argv[1:] == ['--epochs', '3'], sys.argv\n"
        "assert importlib.util.find_spec('horovod.torch') is not None\n"
    )
    (tmp_path / "beside.py").touch()
    for launcher in (["-m", "smdp.compat"], ["-m", "smdp", "run", "--compat"]):
        done = subprocess.run(
            [sys.executable, *launcher, str(script), "--epochs", "3"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            env=ENVIRON,
        )
        assert done.returncode == 0, done.stderr


def test_smddpcommon() -> None:
    passes(
        "import numpy as np, smdp, smddpcommon, herringcommon\n"
        "smdp.init()\n"
        "x = np.arange(4, dtype=np.float32)\n"
        "smddpcommon.setBucketSize(1 << 20)\n"
        "dtype = herringcommon.herringFloat32\n"
        "task = smddpcommon.allReduce(x.ctypes.data, x.ctypes.data, dtype, 4, 0, 1, 0)\n"
        "smddpcommon.wait(task.request)\n"
        "assert x.tolist() == [0, 1, 2, 3]",
        SMDP_COMPAT="1",
    )
