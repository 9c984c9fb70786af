"""Training containers: a fake /opt/ml, and processes that take it for theirs."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "scripts"
HAS_TOOLKIT = importlib.util.find_spec("sagemaker_training") is not None

# What a container runs: sagemaker-training, which calls us, or us.
TOOLKIT = [sys.executable, "-m", "sagemaker_training.cli.train"]
ALONE = [sys.executable, "-m", "smdp.sagemaker", "train"]


class Container:
    """A host's container.

    Args:
        folder: Becomes its /opt/ml.
        script: A file of scripts/, or the text of one.
        program: What it is called in the container.
        hyperparameters: Of the job; every value becomes the string of its JSON.
        hosts: Of the job.
        current: This host; default: the first.
        resources: More for resourceconfig.json.
        variables: More for the environment.
    """

    def __init__(
        self,
        folder: Path,
        script: str,
        *,
        program: str = "train.py",
        hyperparameters: Mapping[str, Any] | None = None,
        hosts: Sequence[str] = ("algo-1",),
        current: str | None = None,
        resources: Mapping[str, Any] | None = None,
        **variables: str,
    ) -> None:
        self.base = folder
        config = folder / "input" / "config"
        for made in (config, folder / "code", folder / "model", folder / "input" / "data" / "train"):
            made.mkdir(parents=True)
        if (SCRIPTS / script.partition("\n")[0]).is_file():
            shutil.copy(SCRIPTS / script, folder / "code" / program)
        else:
            (folder / "code" / program).parent.mkdir(parents=True, exist_ok=True)
            (folder / "code" / program).write_text(script)
        values = {"sagemaker_program": program, "sagemaker_region": "eu-west-1", **(hyperparameters or {})}
        self._write("hyperparameters.json", {name: json.dumps(value) for name, value in values.items()})
        self._write("inputdataconfig.json", {"train": {"TrainingInputMode": "File"}})
        self._write(
            "resourceconfig.json",
            {
                "current_host": current or hosts[0],
                "hosts": list(hosts),
                "current_instance_type": "ml.c5.xlarge",
                "current_group_name": "homogeneousCluster",
                "instance_groups": [
                    {
                        "instance_group_name": "homogeneousCluster",
                        "instance_type": "ml.c5.xlarge",
                        "hosts": list(hosts),
                    }
                ],
                "network_interface_name": "eth0",
                **(resources or {}),
            },
        )
        self.variables = {
            "SAGEMAKER_BASE_DIR": str(folder),
            "SAGEMAKER_TRAINING_MODULE": "smdp.sagemaker:main",
            "TRAINING_JOB_NAME": "digits-2026",
            "OMP_NUM_THREADS": "1",
            "SMDP_INIT_TIMEOUT": "60",
            **variables,
        }

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        (self.base / "input" / "config" / name).write_text(json.dumps(content))

    def environ(self) -> dict[str, str]:
        """Without what this test was started with."""
        mine = {
            name: value for name, value in os.environ.items() if not name.startswith(("SM", "SAGEMAKER_"))
        }
        return {**mine, **self.variables}

    def run(self, command: Sequence[str] = ALONE) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environ(), cwd=self.base, capture_output=True, text=True, timeout=200
        )

    def start(self, command: Sequence[str] = ALONE) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=self.environ(),
            cwd=self.base,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def failure(self) -> str:
        file = self.base / "output" / "failure"
        return file.read_text() if file.exists() else ""
