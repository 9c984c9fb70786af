"""The main program of a container of the SageMaker Python SDK v3, which the driver calls."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from smdp import SmdpError, config
from smdp.sagemaker.entry_script import EntryScript
from smdp.sagemaker.failure import TrainingError
from smdp.sagemaker.job import Job
from smdp.sagemaker.training import fail, train


def main() -> None:
    """Runs SM_ENTRY_SCRIPT in the current folder with the hyperparameters of SM_HPS.

    SM_DISTRIBUTED_CONFIG holds the arguments of Smdp.
    """
    try:
        settings = _read_object("SM_DISTRIBUTED_CONFIG")
        if settings.get("compat") is not None:
            os.environ["SMDP_COMPAT"] = "1" if settings["compat"] else "0"
        count = settings.get("process_count_per_node")
        if count is not None:
            name = "process_count_per_node"
            count = config.read_int({name: str(count)}, name, minimum=1)
        job = Job.read()
        program = config.read(os.environ, "SM_ENTRY_SCRIPT") or ""
        script = EntryScript(program, os.getcwd(), os.getcwd())
        script.check()
        train(job, script, _arguments(_read_object("SM_HPS")), count)
    except TrainingError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.errno)
    except (SmdpError, OSError) as error:
        sys.exit(str(fail(str(error), 1)))


def _arguments(hyperparameters: dict[str, Any]) -> list[str]:
    """Returns the script's arguments as drivers of the SDK v3 pass them: values as JSON, except strings."""
    words = []
    for name, value in hyperparameters.items():
        words += [f"--{name}", value if isinstance(value, str) else json.dumps(value)]
    return words


def _read_object(name: str) -> dict[str, Any]:
    text = config.read(os.environ, name) or "{}"
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise config.invalid(name, text, "a JSON object")
    return value
