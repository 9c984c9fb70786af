"""The environment variables that scripts for SageMaker read."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import sys

# For each variable: its value before, and the value that was set.
_set: dict[str, tuple[str | None, str]] = {}
_said: set[str] = set()
_MAPPING = "OMPI_MCA_rmaps_base_mapping_policy"


def set_job_variables(*, is_script: bool = False) -> None:
    """Sets the variables that are missing: torch's, SMDDP's local rank, and the SM_* ones of a training job.

    A process that no launcher has started, such as a launcher itself, gets only those that are the same for
    all ranks.

    Args:
        is_script: Whether this process is known to be a script and not a launcher. A script is a rank even if
            no variable is named after ranks, as in a Kubernetes pod. A script that trains alone gets the
            variables of a job with one host.
    """
    before = dict(os.environ)
    try:
        folder = os.getcwd()
    except OSError:  # the folder was removed
        folder = ""
    defaults = {
        "SM_NUM_GPUS": str(len(glob.glob("/dev/nvidia[0-9]*"))),
        "SM_MODEL_DIR": os.path.join(folder, "model"),
        "SM_OUTPUT_DATA_DIR": os.path.join(folder, "output"),
        "SM_LOG_LEVEL": "20",
        # No job passes hyperparameters here: the script's arguments are its own.
        "SM_HPS": "{}",
        "SM_USER_ARGS": "[]",
        "SM_NUM_CPUS": str(os.cpu_count()),
    }
    # Looks only at names: every Python process of a job runs this, and most should not import the core.
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
        # A lone process without such a variable may still start ranks, which must not inherit a rank.
        if not ((is_named or detect().world_size > 1) and set_torch_variables()):
            return {**STAND_IN, "SMDATAPARALLEL_LOCAL_RANK": "0"} if is_script else {}
    except ConfigError as error:
        # Not raised: the process may not be a rank, or the script may set up its rank itself.
        text = str(error).rstrip(".")
        if text not in _said:
            _said.add(text)
            end = "A script that relies on these variables trains alone."
            sys.stderr.write(f"[smdp] SMDP_COMPAT: {text}. {end}\n")
        return {}
    for name, folder in (("SM_MODEL_DIR", "model"), ("SM_OUTPUT_DATA_DIR", "output")):
        if name not in os.environ:  # scripts save there without creating the folder
            with contextlib.suppress(OSError):  # the folder may be read-only; most scripts save elsewhere
                os.makedirs(folder, exist_ok=True)
    # Transformers looks for the same key.
    is_model_parallel = "partitions" in os.environ.get("SM_HP_MP_PARAMETERS", "")
    params = {
        "sagemaker_distributed_dataparallel_enabled": not is_model_parallel,
        "sagemaker_instance_type": "local",
        **({"sagemaker_mpi_enabled": True} if is_model_parallel else {}),
    }
    _add_to("SM_FRAMEWORK_PARAMS", params)
    found = {
        "SMDATAPARALLEL_SERVER_ADDR": os.environ["MASTER_ADDR"],
        # SMDDP's torch.distributed store listens two ports above this one.
        "SMDATAPARALLEL_SERVER_PORT": str(int(os.environ["MASTER_PORT"]) - 2),
    }
    return found | _hosts()


def is_data_parallel() -> bool:
    """Returns whether this process is a rank of an SMDDP job, as transformers and Accelerate decide it."""
    try:
        given = json.loads(os.environ.get("SM_FRAMEWORK_PARAMS", "{}"))
    except ValueError:
        return False
    is_enabled = isinstance(given, dict) and bool(given.get("sagemaker_distributed_dataparallel_enabled"))
    is_switched_off = os.environ.get("ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE") == "NO"
    return is_enabled and not is_switched_off and "LOCAL_RANK" in os.environ


def _add_to(name: str, params: dict[str, object]) -> None:
    """Adds the missing entries to a JSON variable. A SageMaker job with another launcher has its own."""
    try:
        given = json.loads(os.environ.get(name, "{}"))
    except ValueError:
        return
    if isinstance(given, dict):
        os.environ[name] = json.dumps(params | given)


def _hosts() -> dict[str, str]:
    """Returns the host variables if this host's index is known and all hosts have equally many ranks."""
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
    """Returns the host's index if mpirun filled one host after the other, as is its default and SMDDP's."""
    is_in_turn = os.environ.get(_MAPPING, "").startswith("node")
    host, slot = divmod(int(os.environ["RANK"] or 0), local_size)
    return "" if is_in_turn or slot != int(os.environ["LOCAL_RANK"] or 0) else str(host)


def take_back_job_variables() -> None:
    """Restores the variables that set_job_variables() set, unless they were changed since."""
    for name, (before, now) in _set.items():
        if os.environ.get(name) != now:
            continue
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
    _set.clear()
