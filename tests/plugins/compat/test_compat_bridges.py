"""The small changes to released packages: made, taken back to the last object, left out for newer ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from snippets import passes, python

# What a module's classes, functions and torch's tables of backends hold.
SEEN = """
import copy, functools, importlib, os, sys

def seen():
    found = {"environ": dict(os.environ), "meta_path": [type(finder) for finder in sys.meta_path]}
    for module in MODULES:
        for name, value in vars(sys.modules[module]).items():
            found[module, name] = value
            for part, inner in vars(value).items() if isinstance(value, type) else ():
                inner = inner.func if isinstance(inner, functools.cached_property) else inner
                found[module, name, part] = copy.copy(inner) if isinstance(inner, (dict, list)) else inner
    return found

def file_of(function):
    code = getattr(getattr(function, "fget", function), "__code__", None)
    return getattr(code, "co_filename", "")

def changed(before, after):
    return {key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)
            and (key not in before or key not in after or before[key] != after[key])}
"""

TORCH = {
    "torch.distributed": "Backend",
    "torch.nn.parallel.distributed": "DistributedDataParallel.__init__",
}
ACCELERATE = {
    "accelerate": "ACCELERATE_TORCH_DEVICE",
    "accelerate.state": "PartialState._prepare_backend",
    "accelerate.accelerator": "Accelerator.clip_grad_norm_",
    "accelerate.optimizer": "AcceleratedOptimizer.local_state_dict",
}
TRANSFORMERS = {
    "transformers.training_args": "TrainingArguments._setup_devices",
    "transformers.trainer": "Trainer.train",
}
KERAS = {
    "keras.src.trainers.trainer": "Trainer.compile",
    "keras.src.optimizers.base_optimizer": "BaseOptimizer.variables",
}


def modules_of(framework: str) -> dict[str, str]:
    if framework == "keras":
        keras = pytest.importorskip("keras", "3")
        assert keras.__version__ < "4"
        return KERAS
    pytest.importorskip("torch")
    if framework == "torch":
        return TORCH
    pytest.importorskip("transformers", "5")
    return {**TORCH, **ACCELERATE, **TRANSFORMERS}


@pytest.mark.parametrize("framework", ["torch", "transformers", "keras"])
@pytest.mark.parametrize("is_first", [True, False])
def test_made_and_taken_back(framework: str, is_first: bool, tmp_path: Path) -> None:
    """Whether the packages come before install() or after it."""
    names = modules_of(framework)
    imports = "for module in MODULES: importlib.import_module(module)\n"
    first, then = (imports + "before = seen()\n", "") if is_first else ("", imports)
    passes(
        f"MODULES = {list(names)}\n{SEEN}\n{first}"
        "import smdp.compat\n"
        f"smdp.compat.install()\n{then}"
        "during = seen()\n"
        "smdp.compat.uninstall()\n"
        "after = seen()\n"
        "ours = changed(during, after)\n"
        "text = ' '.join('.'.join(key[1:]) for key in ours if not isinstance(key, str))\n"
        "text += ' '.join(during['environ'].keys() - after['environ'].keys())\n"
        f"assert not [name for name in {list(names.values())} if name not in text], text\n"
        "wrapped = [key for key, value in after.items() if 'smdp_compat' in file_of(value)]\n"
        "assert not wrapped, wrapped\n"
        + ("assert not changed(before, after), changed(before, after)\n" if is_first else ""),
        tmp_path,
    )


def test_data_loaders_are_given_back(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    passes(
        "import torch, torch.utils.data.dataloader as loader\n"
        "import smdp.compat\n"
        "plain = loader._BaseDataLoaderIter.__next__\n"
        "smdp.compat.install()\n"
        "import smdistributed.dataparallel.torch.distributed as dist\n"
        "from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel\n"
        "dist.init_process_group()\n"
        "DistributedDataParallel(torch.nn.Linear(2, 2))\n"
        "assert loader._BaseDataLoaderIter.__next__ is not plain\n"
        "smdp.compat.uninstall()\n"
        "assert loader._BaseDataLoaderIter.__next__ is plain\n",
        tmp_path,
    )


def test_newer_package_is_left_as_it_is() -> None:
    pytest.importorskip("torch")
    done = python(
        "import importlib.metadata, smdp_compat.bridges as bridges\n"
        "bridges.version = lambda name: '3.0.1' if name == 'torch' else importlib.metadata.version(name)\n"
        "import smdp.compat\n"
        "smdp.compat.install()\n"
        "import torch, torch.nn.parallel.distributed as ddp\n"
        "assert 'smdp_compat' not in ddp.DistributedDataParallel.__init__.__code__.co_filename\n"
        "assert 'SMDDP' not in torch.distributed.Backend._plugins"
    )
    assert done.returncode == 0, done.stderr
    assert "[smdp] smdp.compat has not been tested with torch 3 and leaves it unchanged." in done.stderr
    assert "The missing change: Old scripts use the backend" in done.stderr
    assert "The missing change: Transformers 4.20 to 5.23 wraps with device_ids" in done.stderr


def test_device_ids_of_a_model_on_the_cpu(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    passes(
        "import smdp.compat\n"
        "smdp.compat.install()\n"
        "import torch, torch.distributed as dist\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "for given in '[0], 0', '[0], output_device=0', 'device_ids=[0], output_device=0', '[0]':\n"
        "    model = eval(f'DistributedDataParallel(torch.nn.Linear(2, 2), {given})')\n"
        "    assert model.device_ids is None and model.output_device is None, given",
        tmp_path,
    )


def test_accelerate_by_name_without_a_launcher(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    code = (
        "from accelerate import Accelerator\n"
        "from accelerate.utils import InitProcessGroupKwargs\n"
        "Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend='smddp')])"
    )
    done = python(code, cwd=tmp_path, SMDP_COMPAT="1")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ValueError: [smdp] Accelerate: the backend is 'smddp' and LOCAL_RANK is not set, so no launcher has"
        " started this process; start the script with smdp run, torchrun or mpirun."
    )
