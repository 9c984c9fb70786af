"""Variables that scripts for SageMaker read."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import sys

# What was there before, and what was set.
_set: dict[str, tuple[str | None, str]] = {}
_said: set[str] = set()
_MAPPING = "OMPI_MCA_rmaps_base_mapping_policy"


def set_job_variables(*, is_script: bool = False) -> None:
    """Set what is not set: ranks as torch reads them, SMDDP's local rank, and the SM_* of a training job.

    In a process that no launcher has started, a launcher itself for one, only what is the same for all ranks.

    Args:
        is_script: This is no launcher. Then it is a rank also where no variable's name speaks of one, as in a
            pod of Kubernetes; and one that trains alone gets the names of a job with one host.
    """
    before = dict(os.environ)
    try:
        folder = os.getcwd()
    except OSError:  # it has been removed
        folder = ""
    defaults = {
        "SM_NUM_GPUS": str(len(glob.glob("/dev/nvidia[0-9]*"))),
        "SM_MODEL_DIR": os.path.join(folder, "model"),
        "SM_OUTPUT_DATA_DIR": os.path.join(folder, "output"),
        "SM_LOG_LEVEL": "20",
        # A script's arguments are its own here, and no job's.
        "SM_HPS": "{}",
        "SM_USER_ARGS": "[]",
        "SM_NUM_CPUS": str(os.cpu_count()),
    }
    # Only a look at names: every Python of a job comes here, and few are to import the core.
    is_named = any(name.endswith(("RANK", "PROCID")) for name in before)
    if is_named or is_script:
        defaults |= _of_a_rank(is_named, is_script)
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if "LOCAL_RANK" in os.environ:
        os.environ["SMDATAPARALLEL_LOCAL_RANK"] = os.environ["LOCAL_RANK"]
    for name, now in os.environ.items():
        if before.get(name) != now:
            _set[name] = (_set[name][0] if name in _set else before.get(name), now)


def _of_a_rank(is_named: bool, is_script: bool) -> dict[str, str]:
    from smdp import ConfigError
    from smdp.environments import detect
    from smdp.environments.sagemaker import STAND_IN
    from smdp.environments.torch_variables import set_torch_variables

    try:
        # One that is not named and alone may yet start ranks, which must not inherit a number.
        if not ((is_named or detect().world_size > 1) and set_torch_variables()):
            return {**STAND_IN, "SMDATAPARALLEL_LOCAL_RANK": "0"} if is_script else {}
    except ConfigError as error:
        # Not raised: the process may be no rank, and a rank's script may know by itself.
        text = str(error).rstrip(".")
        if text not in _said:
            _said.add(text)
            end = "Scripts that leave the start to others train alone."
            sys.stderr.write(f"[smdp] SMDP_COMPAT: {text}. {end}\n")
        return {}
    for name, folder in (("SM_MODEL_DIR", "model"), ("SM_OUTPUT_DATA_DIR", "output")):
        if name not in os.environ:  # scripts save there without making it
            with contextlib.suppress(OSError):  # most save elsewhere, and need no folder that can be written
                os.makedirs(folder, exist_ok=True)
    # Transformers looks for the word, too.
    is_model_parallel = "partitions" in os.environ.get("SM_HP_MP_PARAMETERS", "")
    params = {
        "sagemaker_distributed_dataparallel_enabled": not is_model_parallel,
        "sagemaker_instance_type": "local",
        **({"sagemaker_mpi_enabled": True} if is_model_parallel else {}),
    }
    _add_to("SM_FRAMEWORK_PARAMS", params)
    found = {
        "SMDATAPARALLEL_SERVER_ADDR": os.environ["MASTER_ADDR"],
        # SMDDP's torch.distributed store is at the port after next.
        "SMDATAPARALLEL_SERVER_PORT": str(int(os.environ["MASTER_PORT"]) - 2),
    }
    return found | _hosts()


def is_data_parallel() -> bool:
    """Whether this process is a rank of a job for SMDDP, by what transformers and Accelerate look at."""
    try:
        given = json.loads(os.environ.get("SM_FRAMEWORK_PARAMS", "{}"))
    except ValueError:
        return False
    is_enabled = isinstance(given, dict) and bool(given.get("sagemaker_distributed_dataparallel_enabled"))
    is_switched_off = os.environ.get("ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE") == "NO"
    return is_enabled and not is_switched_off and "LOCAL_RANK" in os.environ


def _add_to(name: str, params: dict[str, object]) -> None:
    """Add what is not there: a job of SageMaker's with another launcher has its own words in it."""
    try:
        given = json.loads(os.environ.get(name, "{}"))
    except ValueError:
        return
    if isinstance(given, dict):
        os.environ[name] = json.dumps(params | given)


def _hosts() -> dict[str, str]:
    """Give names in place of SageMaker's, where it is known which host this is and each has as many ranks."""
    size, local_size = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if size == local_size:
        host = "0"
    else:
        host = os.environ.get("GROUP_RANK") or os.environ.get("SLURM_NODEID") or _host_by_slot(local_size)
    if not host.isdecimal() or size % local_size or int(host) >= size // local_size:
        return {}
    hosts = [f"algo-{number + 1}" for number in range(size // local_size)]
    return {"SM_HOSTS": json.dumps(hosts), "SM_CURRENT_HOST": hosts[int(host)]}


def _host_by_slot(local_size: int) -> str:
    """Give the host's number where mpirun filled one host after the other, as it does and SMDDP asks for."""
    is_in_turn = os.environ.get(_MAPPING, "").startswith("node")
    host, slot = divmod(int(os.environ["RANK"] or 0), local_size)
    return "" if is_in_turn or slot != int(os.environ["LOCAL_RANK"] or 0) else str(host)


def take_back_job_variables() -> None:
    """Give what set_job_variables() has set, and nobody has changed, the values from before."""
    for name, (before, now) in _set.items():
        if os.environ.get(name) != now:
            continue
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
    _set.clear()
