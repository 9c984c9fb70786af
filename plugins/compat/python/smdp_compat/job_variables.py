"""Variables that scripts for SageMaker read."""

from __future__ import annotations

import glob
import json
import os

_set: dict[str, str] = {}


def set_job_variables() -> None:
    """Set what is not set: ranks as torch reads them, SMDDP's local rank, and the SM_* of a training job."""
    before = dict(os.environ)
    if any(name.endswith(("RANK", "PROCID")) for name in before):
        from smdp.environments.torch_variables import set_torch_variables

        set_torch_variables()
        os.environ.setdefault("SMDATAPARALLEL_LOCAL_RANK", os.environ.get("LOCAL_RANK", "0"))
    params = {"sagemaker_distributed_dataparallel_enabled": True, "sagemaker_instance_type": "local"}
    defaults = {
        "SMDATAPARALLEL_LOCAL_RANK": "0",
        "SM_FRAMEWORK_PARAMS": json.dumps(params),
        "SM_HOSTS": '["algo-1"]',
        "SM_CURRENT_HOST": "algo-1",
        "SM_NUM_GPUS": str(len(glob.glob("/dev/nvidia[0-9]*"))),
        "SM_MODEL_DIR": os.path.abspath("model"),
        "SM_OUTPUT_DATA_DIR": os.path.abspath("output"),
        "SM_LOG_LEVEL": "20",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    _set.update({name: value for name, value in os.environ.items() if name not in before})


def take_back_job_variables() -> None:
    """Remove what set_job_variables() has set and nobody has changed."""
    for name, value in _set.items():
        if os.environ.get(name) == value:
            del os.environ[name]
    _set.clear()
