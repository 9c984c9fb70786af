"""The training contract: files below /opt/ml that SageMaker provides, and those that a container writes."""

from __future__ import annotations

import dataclasses
import glob
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smdp import config
from smdp.environments.sagemaker import read_hosts, resource_config_file

_BASE = "/opt/ml"
# Names that the SDK adds to the hyperparameters for the container, not for the script.
_PREFIX, _TUNING, _DEFAULT_MODULE = "sagemaker_", "_tuning_objective_metric", "default_user_module_name"
_HOMOGENEOUS = "homogeneousCluster"
# Hyperparameters for the container itself. All other sagemaker_* are parameters of frameworks.
_OF_CONTAINER = (
    "sagemaker_program",
    "sagemaker_submit_directory",
    "sagemaker_enable_cloudwatch_metrics",
    "sagemaker_region",
    "sagemaker_container_log_level",
    "sagemaker_job_name",
    "sagemaker_s3_output",
    _TUNING,
    _DEFAULT_MODULE,
)


@dataclass(frozen=True)
class Job:
    """A training job as one of its containers sees it.

    Attributes:
        name: Name of the training job; empty if it is unknown.
        base_dir: SAGEMAKER_BASE_DIR, by default /opt/ml.
        hosts: The hosts that train together, in the order of their ranks.
        current_host: This host. It is not in `hosts` if its instance group is not part of the distribution.
        hyperparameters: The script's hyperparameters as Python values.
        framework_parameters: Parameters of the SDK's distribution, such as sagemaker_mpi_enabled.
        channels: Names of the input channels, sorted.
        num_gpus: Number of GPUs of this host: SM_NUM_GPUS, or the number of /dev/nvidia0, ... devices.
        resource_config: Content of resourceconfig.json; empty if SM_HOSTS replaces it.
        input_data_config: Content of inputdataconfig.json.
        all_hyperparameters: All hyperparameters, including those for the container.
    """

    name: str
    base_dir: str
    hosts: tuple[str, ...]
    current_host: str
    hyperparameters: Mapping[str, Any]
    framework_parameters: Mapping[str, Any]
    channels: tuple[str, ...]
    num_gpus: int
    resource_config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    input_data_config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    all_hyperparameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def code_dir(self) -> str:
        """The folder with the script."""
        return os.path.join(self.base_dir, "code")

    @property
    def model_dir(self) -> str:
        """The folder whose content becomes model.tar.gz when the job ends."""
        return os.path.join(self.base_dir, "model")

    @property
    def checkpoint_dir(self) -> str:
        """The folder that SageMaker copies to S3 during training and restores after a restart."""
        return os.path.join(self.base_dir, "checkpoints")

    @property
    def output_data_dir(self) -> str:
        """The folder whose content becomes output.tar.gz when the job ends."""
        return os.path.join(self.base_dir, "output", "data")

    @property
    def failure_file(self) -> str:
        """The file whose first 1024 characters become the job's FailureReason."""
        return failure_file({"SAGEMAKER_BASE_DIR": self.base_dir})

    def channel_dir(self, channel: str) -> str:
        """Returns the folder of an input channel; in pipe mode, the prefix of the names of its pipes."""
        return os.path.join(self.base_dir, "input", "data", channel)

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Job:
        """Reads the files and variables of this container.

        Raises:
            ConfigError: One of them is missing or wrong. The message names it.
        """
        base = config.read(environ, "SAGEMAKER_BASE_DIR") or _BASE
        folder = os.path.join(base, "input", "config")
        hosts, current = read_hosts(environ)
        resources = _read_object(resource_config_file(environ))
        texts = _read_object(os.path.join(folder, "hyperparameters.json"))
        hyperparameters = {name: _value(text) for name, text in texts.items()}
        data = _read_object(os.path.join(folder, "inputdataconfig.json"))
        gpus = config.read_int(environ, "SM_NUM_GPUS")
        framework = {
            name: value
            for name, value in hyperparameters.items()
            if name.startswith(_PREFIX) and name not in _OF_CONTAINER
        }
        name = config.read(environ, "TRAINING_JOB_NAME") or str(hyperparameters.get("sagemaker_job_name", ""))
        return cls(
            name=name,
            base_dir=base,
            hosts=tuple(_distribution_hosts(resources, framework, hosts)),
            current_host=current,
            hyperparameters={
                name: value
                for name, value in hyperparameters.items()
                if name not in _OF_CONTAINER and name not in framework
            },
            framework_parameters=framework,
            channels=tuple(sorted(data)),
            num_gpus=count_gpus() if gpus is None else gpus,
            resource_config=resources,
            input_data_config=data,
            all_hyperparameters=hyperparameters,
        )

    def arguments(self) -> list[str]:
        """Returns the hyperparameters as arguments for the script, in sagemaker-training's format."""
        words = []
        for name, value in sorted(self.hyperparameters.items()):
            words.append(f"--{name}" if len(name) > 1 else f"-{name}")
            if isinstance(value, dict):
                words.append(",".join(f"{key}={item}" for key, item in sorted(value.items())))
            else:
                words.append("" if value is None else str(value))
        return words

    def variables(self, program: str, module_dir: str) -> dict[str, str]:
        """Returns the SM_* variables of a script, in sagemaker-training's format.

        Args:
            program: The script; see EntryScript.
            module_dir: The source of the script's folder; see EntryScript.
        """
        groups = {group["instance_group_name"]: group for group in self._instance_groups()}
        group = self.resource_config.get("current_group_name", _HOMOGENEOUS)
        values: dict[str, Any] = {
            "hosts": list(self.resource_config.get("hosts", self.hosts)),
            "current_host": self.current_host,
            "current_instance_type": self.resource_config.get("current_instance_type", "local"),
            "current_instance_group": group,
            "current_instance_group_hosts": groups.get(group, {}).get("hosts", []),
            "instance_groups": list(groups),
            "instance_groups_dict": groups,
            "distribution_instance_groups": _distribution_groups(
                self.resource_config, self.framework_parameters
            ),
            "is_hetero": len(groups) > 1,
            "network_interface_name": self.resource_config.get("network_interface_name", "eth0"),
            "resource_config": dict(self.resource_config),
            "input_data_config": dict(self.input_data_config),
            "channels": list(self.channels),
            "hps": dict(self.hyperparameters),
            "user_args": self.arguments(),
            "user_entry_point": program,
            "module_name": program.removesuffix(".py"),
            "module_dir": module_dir,
            "framework_module": os.environ.get("SAGEMAKER_TRAINING_MODULE"),
            "framework_params": dict(self.framework_parameters),
            "log_level": self.all_hyperparameters.get("sagemaker_container_log_level", 20),
            "num_gpus": self.num_gpus,
            "num_cpus": os.cpu_count(),
            "num_neurons": 0,
            "input_dir": os.path.join(self.base_dir, "input"),
            "input_config_dir": os.path.join(self.base_dir, "input", "config"),
            "model_dir": self.model_dir,
            "output_dir": os.path.join(self.base_dir, "output"),
            "output_data_dir": self.output_data_dir,
            "output_intermediate_dir": os.path.join(self.base_dir, "output", "intermediate"),
            **{f"channel_{name}": self.channel_dir(name) for name in self.channels},
            **{f"hp_{name}": value for name, value in self.hyperparameters.items()},
        }
        values["training_env"] = {
            **{name: values[name] for name in values if not name.startswith(("hp_", "channel_"))},
            "hyperparameters": dict(self.hyperparameters),
            "additional_framework_parameters": dict(self.framework_parameters),
            "channel_input_dirs": {name: self.channel_dir(name) for name in self.channels},
            "job_name": self.name,
        }
        return {f"SM_{name.upper()}": _text(value) for name, value in values.items()}

    def _instance_groups(self) -> list[dict[str, Any]]:
        return list(self.resource_config.get("instance_groups", []))


def failure_file(environ: Mapping[str, str]) -> str:
    """Returns the path of the failure file, which is known even if the job cannot be read."""
    return os.path.join(config.read(environ, "SAGEMAKER_BASE_DIR") or _BASE, "output", "failure")


def count_gpus() -> int:
    """Returns the number of NVIDIA GPUs of this host."""
    return len(glob.glob("/dev/nvidia[0-9]*"))


def _distribution_groups(resources: Mapping[str, Any], framework: Mapping[str, Any]) -> list[str]:
    named = framework.get("sagemaker_distribution_instance_groups")
    if named is not None:
        return list(named)
    is_distributed = any(value is True and name.endswith("_enabled") for name, value in framework.items())
    return [resources.get("current_group_name", _HOMOGENEOUS)] if is_distributed else []


def _distribution_hosts(
    resources: Mapping[str, Any], framework: Mapping[str, Any], hosts: list[str]
) -> list[str]:
    """Returns the hosts of the instance groups that the SDK chose, or all hosts if it chose none."""
    named = framework.get("sagemaker_distribution_instance_groups")
    if named is None:
        return hosts
    groups = {group["instance_group_name"]: group["hosts"] for group in resources.get("instance_groups", [])}
    unknown = [name for name in named if name not in groups]
    if unknown or not named:
        raise config.invalid(
            "sagemaker_distribution_instance_groups", named, f"names from {', '.join(groups)}"
        )
    chosen = [host for name in named for host in groups[name]]
    strangers = [host for host in chosen if host not in hosts]
    if strangers:
        raise config.invalid(
            "resourceconfig.json", strangers, f"instance groups of the job's hosts, {', '.join(hosts)}"
        )
    return [host for host in hosts if host in chosen]


def _read_object(path: str) -> dict[str, Any]:
    """Returns the JSON object in a file, or an empty dict if the file does not exist."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise config.invalid(os.path.basename(path), path, f"a JSON object ({error})") from None
    if not isinstance(content, dict):
        raise config.invalid(os.path.basename(path), content, f"a JSON object (in {path})")
    return content


def _value(text: object) -> Any:
    """Returns the value of a hyperparameter, which is JSON. Text that is not JSON is returned unchanged."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def _text(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
