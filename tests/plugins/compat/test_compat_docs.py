"""The pages name everything that is there or refused, and what the originals have is one or the other."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from smdp.compat.horovod import refusals
from smdp_compat.finder import RefusalFinder

# What these modules import for themselves; oob_allreduce and ReduceOp are SMDDP's, not Horovod's.
HELPERS = {
    "annotations",
    "NoReturn",
    "set_torch_variables",
    "no_attribute",
    "oob_allreduce",
    "ReduceOp",
    "DType",
    "check_comm",
    "sets_of",
}
DOCS = Path(__file__).resolve().parents[3] / "docs"

# The names of the originals, as their documentation and scripts have them.
_WORLD = """init shutdown is_initialized start_timeline stop_timeline size local_size cross_size rank
    local_rank cross_rank is_homogeneous mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built
    nccl_built ddl_built ccl_built cuda_built rocm_built ProcessSet global_process_set add_process_set
    remove_process_set Average Sum Adasum Min Max Product gpu_available elastic Compression
    DistributedOptimizer join"""
_KERAS = """init shutdown is_initialized start_timeline stop_timeline size local_size cross_size rank
    local_rank cross_rank mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built
    ddl_built ccl_built cuda_built rocm_built Average Sum Compression callbacks elastic DistributedOptimizer
    global_process_set PartialDistributedOptimizer broadcast_global_variables allreduce allgather broadcast
    reducescatter load_model"""
ORIGINALS = {
    "smdp.compat.horovod.torch": f"""{_WORLD} HorovodInternalError SyncBatchNorm allgather allgather_async
        allgather_object allreduce allreduce_ allreduce_async allreduce_async_ alltoall alltoall_async barrier
        broadcast broadcast_ broadcast_async broadcast_async_ broadcast_object broadcast_optimizer_state
        broadcast_parameters grouped_allgather grouped_allgather_async grouped_allreduce grouped_allreduce_
        grouped_allreduce_async grouped_allreduce_async_ grouped_reducescatter grouped_reducescatter_async
        poll reducescatter reducescatter_async sparse_allreduce_async synchronize""",
    "smdp.compat.horovod.tensorflow": f"""{_WORLD} BroadcastGlobalVariablesHook DistributedGradientTape
        PartialDistributedGradientTape SyncBatchNormalization allgather allgather_object allreduce alltoall
        broadcast broadcast_ broadcast_global_variables broadcast_object broadcast_object_fn
        broadcast_variables grouped_allgather grouped_allreduce grouped_reducescatter local_rank_op
        local_size_op process_set_included_op rank_op reducescatter size_op""",
    "smdp.compat.horovod.keras": f"{_KERAS} Adasum",
    "smdp.compat.horovod.common.util": """extension_available check_extension gpu_available mpi_built
        mpi_enabled gloo_built gloo_enabled nccl_built ddl_built ccl_built cuda_built rocm_built
        num_rank_is_power_2 split_list is_iterable""",
    "smdp.compat.horovod.common.exceptions": """HorovodInternalError HorovodVersionMismatchError
        HostsUpdatedInterrupt""",
    "smdp.compat.horovod.tensorflow.keras": f"{_KERAS} ProcessSet add_process_set remove_process_set",
    "smdp.compat.sagemaker.dataparallel": "start_profiler stop_profiler _get_id_for_herring_task",
    "smdp.compat.sagemaker.dataparallel.exceptions": "SMDDPError",
    "smdp.compat.sagemaker.dataparallel.smddpcommon": """allReduce herringFloat16 herringFloat32 setBucketSize
        wait""",
    "smdp.compat.sagemaker.dataparallel.torch": "get_local_rank distributed",
    "smdp.compat.sagemaker.dataparallel.torch.distributed": """is_available is_initialized init_process_group
        get_world_size get_rank get_local_rank all_reduce broadcast all_gather all_to_all_single barrier
        reduce group.WORLD ReduceOp.AVERAGE ReduceOp.SUM ReduceOp.MIN ReduceOp.MAX""",
    "smdp.compat.sagemaker.dataparallel.torch.parallel": "DistributedDataParallel.no_sync",
    "smdp.compat.sagemaker.dataparallel.torch.parallel.distributed": "DistributedDataParallel",
    "smdp.compat.sagemaker.dataparallel.torch.torch_smddp": "",
    "smdp.compat.sagemaker.dataparallel.tensorflow": """init size local_size rank local_rank shutdown
        allreduce oob_allreduce broadcast broadcast_variables broadcast_global_variables overlap
        DistributedGradientTape DistributedOptimizer BroadcastGlobalVariablesHook Compression.none
        Compression.fp16 NoneCompression FP16Compression ReduceOp.AVERAGE ReduceOp.SUM ReduceOp.MIN
        ReduceOp.MAX get_worker_comm keras""",
    "smdp.compat.sagemaker.dataparallel.tensorflow.keras": """init rank size local_rank Compression
        DistributedOptimizer callbacks.BroadcastGlobalVariablesCallback callbacks.MetricAverageCallback""",
}


def words_of(text: str) -> set[str]:
    """Give the words between backticks: `size` is not named by `local_size`."""
    return {word for code in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"\w+", code)}


def public_names(module_name: str) -> list[str]:
    module = importlib.import_module(module_name)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and name not in HELPERS
        # torch's Tensor, say, which an annotation needs.
        and getattr(value, "__module__", "smdp").startswith("smdp")
    ]


@pytest.mark.parametrize(
    ("framework", "module", "page"),
    [
        ("torch", "smdp.compat.horovod.torch", "horovod.md"),
        ("torch", "smdp.compat.sagemaker.dataparallel.torch.distributed", "sagemaker.md"),
        ("tensorflow", "smdp.compat.horovod.tensorflow", "horovod.md"),
        ("tensorflow", "smdp.compat.horovod.tensorflow.keras", "horovod.md"),
        ("tensorflow", "smdp.compat.horovod.keras", "horovod.md"),
        ("tensorflow", "smdp.compat.sagemaker.dataparallel.tensorflow", "sagemaker.md"),
        ("numpy", "smdp.compat.horovod.common.util", "horovod.md"),
        ("numpy", "smdp.compat.horovod.common.exceptions", "horovod.md"),
        ("torch", "smdp.compat.horovod.common.process_sets", "horovod.md"),
        ("numpy", "smdp.compat.sagemaker.dataparallel", "sagemaker.md"),
        ("numpy", "smdp.compat.sagemaker.dataparallel.exceptions", "sagemaker.md"),
        ("numpy", "smdp.compat.sagemaker.dataparallel.smddpcommon", "sagemaker.md"),
    ],
)
def test_every_name_has_its_line(framework: str, module: str, page: str) -> None:
    pytest.importorskip(framework, None if framework == "numpy" else "2")
    heads = re.findall(r"^\|(.*?)\|", (DOCS / page).read_text(), flags=re.MULTILINE)
    assert [name for name in public_names(module) if name not in words_of(" ".join(heads))] == []


def test_every_refusal_has_its_line() -> None:
    refused = {"Adasum", *refusals._NAMES, *refusals._MODULES}
    assert sorted(refused - words_of((DOCS / "horovod.md").read_text())) == []


@pytest.mark.parametrize("module", ORIGINALS)
def test_every_name_of_the_originals(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there, or its error says what to use."""
    framework = next((name for name in ("torch", "tensorflow") if name in module.split(".")), "numpy")
    pytest.importorskip("tensorflow" if "keras" in module else framework)
    found = importlib.import_module(module)
    assert [name for name in ORIGINALS[module].split() if not is_there_or_refused(found, name)] == []
    # Only of a package Python asks the finder.
    names = [name for name in ORIGINALS[module].split() if hasattr(found, "__path__") and "." not in name]
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, RefusalFinder()])
    assert [name for name in names if not can_be_imported_or_is_refused(module, name)] == []


def can_be_imported_or_is_refused(module: str, name: str) -> bool:
    try:
        exec(f"from {module} import {name}")
    except ImportError as error:
        return str(error).startswith("[smdp] ") and " is not supported" in str(error)
    return True


def is_there_or_refused(module: ModuleType, name: str) -> bool:
    try:
        functools.reduce(getattr, name.split("."), module)
    except AttributeError as error:
        return " is not supported" in str(error)
    return True
