"""The finder: what resolves, what is refused, and that it can be taken back."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from snippets import ENVIRON, passes, python

RANK_0 = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
RANK_0 |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501"}


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


def test_word_that_the_variable_does_not_have() -> None:
    done = python("import smdp_compat, sys; sys.exit(smdp_compat.is_installed())", SMDP_COMPAT="maybe")
    assert (
        done.stderr == "[smdp] SMDP_COMPAT is 'maybe'; allowed: 1, true, yes, 0, false, no. It stays off.\n"
    )
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("module", "framework"),
    [
        ("horovod.torch", "PyTorch"),
        ("horovod.tensorflow.keras", "TensorFlow"),
        ("smdistributed.dataparallel.torch.torch_smddp", "PyTorch"),
        ("smdistributed.dataparallel.tensorflow", "TensorFlow"),
    ],
)
def test_framework_that_is_not_installed(module: str, framework: str) -> None:
    name = {"PyTorch": "torch", "TensorFlow": "tensorflow"}[framework]
    if importlib.util.find_spec(name) is not None:
        pytest.skip(f"{framework} is installed")
    done = python(f"import {module}", SMDP_COMPAT="1")
    last = done.stderr.splitlines()[-1]
    assert "[smdp]" in last
    assert f' requires {framework}, which is not installed: pip install "smdp[{name}]"' in last


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


@pytest.mark.parametrize(
    "spoil", ["mkdir -p here; touch here/model here/output; cd here", "mkdir here; cd here; rmdir ../here"]
)
def test_folders_that_cannot_be_made(spoil: str, tmp_path: Path) -> None:
    """They need not be: the script may save elsewhere."""
    done = subprocess.run(
        ["bash", "-c", f'{spoil}; "{sys.executable}" -c "import horovod"'],
        env={**ENVIRON, **RANK_0, "SMDP_COMPAT": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("given", ['{"sagemaker_torch_distributed_enabled": true}', "{}"])
def test_parameters_that_a_job_has_are_kept(given: str, tmp_path: Path) -> None:
    """transformers asks for one of them."""
    passes(
        "import json, os, smdp.compat\n"
        "given = os.environ['SM_FRAMEWORK_PARAMS']\n"
        "smdp.compat.install()\n"
        "params = json.loads(os.environ['SM_FRAMEWORK_PARAMS'])\n"
        "assert params['sagemaker_distributed_dataparallel_enabled'] is True\n"
        "assert params | json.loads(given) == params\n"
        "smdp.compat.uninstall()\n"
        "assert os.environ['SM_FRAMEWORK_PARAMS'] == given",
        tmp_path,
        SM_FRAMEWORK_PARAMS=given,
        **RANK_0,
    )


@pytest.mark.parametrize(
    ("rank", "local_rank", "size", "local_size", "launcher", "hosts", "host"),
    [
        (1, 1, 2, 2, {}, ["algo-1"], "algo-1"),
        (1, 1, 6, 2, {"GROUP_RANK": "0"}, ["algo-1", "algo-2", "algo-3"], "algo-1"),
        (4, 0, 6, 2, {"GROUP_RANK": "2"}, ["algo-1", "algo-2", "algo-3"], "algo-3"),
        (1, 0, 4, 2, {"SLURM_NODEID": "1"}, ["algo-1", "algo-2"], "algo-2"),  # rank by rank over the hosts
        (3, 1, 4, 2, {}, ["algo-1", "algo-2"], "algo-2"),  # one host after the other, as mpirun fills them
        (1, 0, 4, 2, {}, None, None),  # rank by rank, and nobody tells which host this is
        (2, 0, 8, 2, {"OMPI_MCA_rmaps_base_mapping_policy": "node"}, None, None),
        (2, 0, 3, 2, {}, None, None),
        (2, 0, 3, 2, {"GROUP_RANK": "1"}, None, None),  # hosts of different sizes
    ],
)
def test_hosts_of_a_job(
    tmp_path: Path,
    rank: int,
    local_rank: int,
    size: int,
    local_size: int,
    launcher: dict[str, str],
    hosts: list[str] | None,
    host: str | None,
) -> None:
    passes(
        "import json, os, smdp.compat\n"
        "smdp.compat.install()\n"
        f"assert json.loads(os.environ.get('SM_HOSTS', 'null')) == {hosts}\n"
        f"assert os.environ.get('SM_CURRENT_HOST') == {host!r}\n"
        "assert os.environ['SMDATAPARALLEL_SERVER_ADDR'] == '10.0.0.1'\n"
        "assert int(os.environ['SMDATAPARALLEL_SERVER_PORT']) + 2 == 29501",
        tmp_path,
        RANK=str(rank),
        LOCAL_RANK=str(local_rank),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(local_size),
        MASTER_ADDR="10.0.0.1",
        MASTER_PORT="29501",
        **launcher,
    )


def test_process_that_no_launcher_started(tmp_path: Path) -> None:
    """A launcher, for one, whose children must not inherit a local rank."""
    passes(
        "import os\n"
        "assert 'SMDATAPARALLEL_LOCAL_RANK' not in os.environ and 'SM_FRAMEWORK_PARAMS' not in os.environ\n"
        "assert 'SM_MODEL_DIR' in os.environ",
        tmp_path,
        SMDP_COMPAT="1",
    )


def test_script_that_no_launcher_started(tmp_path: Path) -> None:
    """It reads the names of a job; what it starts must not take them for a launcher's."""
    passes(
        "import json, os, smdp.compat, smdp.environments as environments\n"
        "before = dict(os.environ)\n"
        "smdp.compat.install()\n"
        "assert json.loads(os.environ['SM_HOSTS']) == [os.environ['SM_CURRENT_HOST']] == ['algo-1']\n"
        "assert os.environ['SMDATAPARALLEL_LOCAL_RANK'] == '0'\n"
        "assert not {'RANK', 'LOCAL_RANK', 'WORLD_SIZE'} & os.environ.keys()\n"
        "assert environments.detect().source == 'single process'\n"
        "smdp.compat.uninstall()\n"
        "assert dict(os.environ) == before",
        tmp_path,
    )


INDEXED_JOB = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "JOB_COMPLETION_INDEX": "1",
    "SMDP_WORLD_SIZE": "2",
    "SMDP_MASTER_ADDR": "10.0.0.1",
}
TRAINING_JOB = {"SM_HOSTS": '["10.0.0.1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}


@pytest.mark.parametrize("launcher", [INDEXED_JOB, TRAINING_JOB])
@pytest.mark.parametrize("is_on", ["0", "1"])
def test_launchers_whose_names_speak_of_no_rank(is_on: str, launcher: dict[str, str], tmp_path: Path) -> None:
    """Whether or not the variable has switched the rest on before; a launcher is not to hand a rank on."""
    ranks = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "SMDATAPARALLEL_LOCAL_RANK": "0"}
    (tmp_path / "train.py").write_text(
        "import json, os\n"
        f"assert os.environ.items() >= {ranks}.items(), os.environ\n"
        "assert os.environ['MASTER_ADDR'] == '10.0.0.1'\n"
        "assert json.loads(os.environ['SM_FRAMEWORK_PARAMS'])['sagemaker_distributed_dataparallel_enabled']\n"
        "assert json.loads(os.environ['SM_HOSTS'])[1] == os.environ['SM_CURRENT_HOST'] == 'algo-2'\n"
    )
    passes(
        "import os, sys\n"
        "assert 'RANK' not in os.environ\n"
        "sys.argv = ['compat', 'train.py']\n"
        "import smdp.compat.__main__",
        tmp_path,
        SMDP_COMPAT=is_on,
        **launcher,
    )


def test_launcher_that_tells_too_little(tmp_path: Path) -> None:
    launcher = {name: value for name, value in INDEXED_JOB.items() if name != "SMDP_WORLD_SIZE"}
    done = python("import smdp.compat as c; c.install(); c.install()", cwd=tmp_path, **launcher)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("[smdp] SMDP_COMPAT: JOB_COMPLETION_INDEX='1' is set but SMDP_WORLD_SIZE is not;")


def test_half_of_a_jobs_variables(tmp_path: Path) -> None:
    """A Trainer would not notice that its ranks know nothing of each other."""
    mpirun_5 = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    done = python("import smdistributed.dataparallel", cwd=tmp_path, SMDP_COMPAT="1", **mpirun_5)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "[smdp] SMDP_COMPAT: SMDP_MASTER_ADDR is not set, and Open MPI does not provide the address"
    )
    assert line.endswith("of rank 0's host>. A script that relies on these variables trains alone.")


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
    assert "run without --compat" in done.stderr


def test_installed_horovod_is_taken(tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("is_theirs = True\n")
    done = python("import horovod; assert horovod.is_theirs", path=tmp_path, SMDP_COMPAT="1")
    assert done.returncode == 0, done.stderr


def test_what_is_not_there_says_so() -> None:
    done = python("import smdistributed.modelparallel.tensorflow as smp", SMDP_COMPAT="1")
    assert "by PyTorch's modules and autograd" in done.stderr
    assert "Train with data parallelism, by smdp.tensorflow" in done.stderr
    done = python(
        "import smdistributed.modelparallel as m; assert m.__version__ == '1.15.0'", SMDP_COMPAT="1"
    )
    assert done.returncode == 0, done.stderr
    done = python("import smdistributed.no_such_module", SMDP_COMPAT="1")
    assert "No module named 'smdistributed.no_such_module'" in done.stderr


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        ("import horovod.spark.torch", "start the script with smdp run"),
        ("from horovod import run", "start the script with smdp run"),
        ("import horovod; horovod.run", "start the script with smdp run"),
        ("import horovod.mxnet as hvd", "smdp works with PyTorch and TensorFlow"),
        ("from horovod.data.data_loader_base import BaseDataLoader", "use torch.utils.data.DataLoader"),
    ],
)
def test_modules_of_horovod_that_are_not_there(line: str, cure: str) -> None:
    done = python(line, SMDP_COMPAT="1")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "[smdp] horovod." in last and f" is not supported: {cure}" in last


@pytest.mark.parametrize(
    "module", ["common.elastic", "torch.elastic", "spark", "ray", "run", "runner", "mxnet"]
)
def test_scripts_may_do_without(module: str) -> None:
    """As where Horovod was built without it: they catch an ImportError."""
    if "torch" in module:
        pytest.importorskip("torch")
    script = f"try:\n    import horovod.{module}\nexcept ImportError as error:\n    print(error.name, error)"
    done = python(script, SMDP_COMPAT="1")
    assert done.stdout.startswith(f"horovod.{module} [smdp] horovod.{module} is not supported: "), done.stderr


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
        "from smdistributed.modelparallel.torch.optimizers import FusedAdam, FusedLAMB;"
        "assert not hasattr(smp.optimizers, 'FusedAdem');"
        "import torch; FusedAdam([torch.nn.Parameter(torch.ones(1))]).step();"
        "FusedLAMB([])",
        SMDP_COMPAT="1",
    )
    assert "smp.optimizers.FusedLAMB needs the norms of whole tensors" in done.stderr


def test_helpers_that_scripts_import() -> None:
    pytest.importorskip("torch")
    done = python(
        "import smdistributed.modelparallel.torch as smp;"
        "from smdistributed.modelparallel.torch.utils import rmsg;"
        "from smdistributed.modelparallel.test.torch.utils import dump_model, verify;"
        "smp.init({'microbatches': 2});"
        "assert smp.utils.rmsg is rmsg;"
        "print(rmsg('step 3'));"
        "verify(smp)",
        SMDP_COMPAT="1",
    )
    assert done.stdout.endswith("[rank 0: pp_rank 0, tp_rank 0, dp_rank 0] step 3\n"), done.stderr
    assert "test.torch.utils.verify belongs to the tests of Amazon's library" in done.stderr


@pytest.mark.parametrize(
    "line", ["import torch.sagemaker as tsm", "from torch.sagemaker.delayed_param import DelayedParamIniter"]
)
def test_model_parallel_2_gets_one_line(line: str) -> None:
    pytest.importorskip("torch")
    done = python(line, SMDP_COMPAT="1")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: [smdp] torch.sagemaker is SageMaker Model Parallel"), last
    assert "smdistributed.modelparallel.torch" in last and "fully_shard" in last


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
