"""Detects SageMaker training containers."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Mapping

from smdp import config
from smdp._shown import counted
from smdp.environments.base import Environment, Launch, Ranks, make_launch, read_master_port

PORT = 7777  # of torch's store; a launcher in the container that sets it makes smdp use the next port
STAND_IN = {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}
"""Values that smdp.compat sets for a script that trains alone on any machine; they are not a launcher's."""


class SageMaker(Environment):
    """One process per host. If a launcher in the container starts more, its variables take precedence."""

    name = "SageMaker"
    variables = ("TRAINING_JOB_NAME", "SM_HOSTS", "SM_CURRENT_HOST", "SM_MASTER_ADDR", "SM_NUM_GPUS")

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Returns whether this is a training container."""
        is_stand_in = all(environ.get(name) == value for name, value in STAND_IN.items())
        if config.read(environ, "SM_HOSTS") and not (is_stand_in and config.read(environ, "SMDP_COMPAT")):
            return True
        return os.path.exists(resource_config_file(environ))

    @classmethod
    def launch(cls, environ: Mapping[str, str]) -> Launch:
        """Returns this process's place in its job, from SM_* or resourceconfig.json.

        The rank is the position in the list, not the number in the name: the list is sorted as text.
        """
        hosts, current = read_hosts(environ)
        ranks = Ranks(hosts.index(current), len(hosts), 0, 1)
        master = config.read(environ, "SM_MASTER_ADDR") or hosts[0]
        launch = make_launch(environ, ranks, cls.name, master_addr=master)
        if ranks.world_size > 1 and read_master_port(environ) is None:
            launch = Launch(**{**launch.__dict__, "master_port": PORT})
        return launch

    @classmethod
    def cost(cls, environ: Mapping[str, str]) -> str:
        """Returns a warning on rank 0 if the host has several GPUs, of which its only rank uses one."""
        hosts, current = read_hosts(environ)
        gpus = config.read(environ, "SM_NUM_GPUS") or str(len(glob.glob("/dev/nvidia[0-9]*")))
        if current != hosts[0] or not gpus.isdigit() or int(gpus) < 2:
            return ""
        return (
            f"this host has {gpus} GPUs, but no launcher has started this process. There is one rank on each "
            f"of {counted(len(hosts), 'host')}, and all GPUs but one are idle. Set "
            "SAGEMAKER_TRAINING_MODULE=smdp.sagemaker:main, which starts a rank per GPU, or start the script "
            "with smdp run or torchrun"
        )


def read_hosts(environ: Mapping[str, str]) -> tuple[list[str], str]:
    """Returns the job's hosts in the order of the list, and this host, from SM_HOSTS or resourceconfig.json.

    Raises:
        ConfigError: The list is invalid, contains a host twice, or does not contain this host.
    """
    text = config.read(environ, "SM_HOSTS")
    where, current_name, current = "SM_HOSTS", "SM_CURRENT_HOST", config.read(environ, "SM_CURRENT_HOST")
    hosts: object
    allowed = "a JSON list of host names"
    if text is not None:
        try:
            hosts = json.loads(text)
        except ValueError:
            raise config.invalid(where, text, allowed) from None
    else:
        where = resource_config_file(environ)
        try:
            with open(where, encoding="utf-8") as file:
                content = json.load(file)
            hosts = content["hosts"]
            if current is None:
                current_name, current = where, content["current_host"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            message = f"a JSON file with hosts and current_host ({type(error).__name__})"
            raise config.invalid("resourceconfig.json", where, message) from None
    if not isinstance(hosts, list) or not hosts or not all(isinstance(host, str) for host in hosts):
        raise config.invalid(where, text or hosts, allowed)
    if len(set(hosts)) < len(hosts):
        raise config.invalid(where, hosts, f"{allowed}, each only once")
    if current is None or current not in hosts:
        raise config.invalid(current_name, current or "", f"one of {', '.join(hosts)}")
    return hosts, current


def resource_config_file(environ: Mapping[str, str]) -> str:
    """Returns the path of resourceconfig.json."""
    base = config.read(environ, "SAGEMAKER_BASE_DIR") or "/opt/ml"
    return os.path.join(base, "input", "config", "resourceconfig.json")
