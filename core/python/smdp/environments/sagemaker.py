"""A SageMaker training container."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Mapping

from smdp import config
from smdp._shown import counted
from smdp.environments.base import Environment, Launch, Ranks, make_launch, read_master_port

PORT = 7777  # torch's store; smdp's is the next one where a launcher in the container says so
STAND_IN = {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}
"""What smdp.compat gives a script that trains alone, on any machine; not what started it."""


class SageMaker(Environment):
    """One process per host, unless a launcher in the container made more (its variables then come first)."""

    name = "SageMaker"
    variables = ("TRAINING_JOB_NAME", "SM_HOSTS", "SM_CURRENT_HOST", "SM_MASTER_ADDR", "SM_NUM_GPUS")

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Tell whether this is a training container."""
        is_stand_in = all(environ.get(name) == value for name, value in STAND_IN.items())
        if config.read(environ, "SM_HOSTS") and not (is_stand_in and config.read(environ, "SMDP_COMPAT")):
            return True
        return os.path.exists(resource_config_file(environ))

    @classmethod
    def launch(cls, environ: Mapping[str, str]) -> Launch:
        """Read SM_HOSTS and SM_CURRENT_HOST, else resourceconfig.json.

        A rank is the place in the list, never the number in the name: the list is sorted as text.
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
        """Say on rank 0 how many GPUs are idle, as this is the only rank of its host."""
        hosts, current = read_hosts(environ)
        gpus = config.read(environ, "SM_NUM_GPUS") or str(len(glob.glob("/dev/nvidia[0-9]*")))
        if current != hosts[0] or not gpus.isdigit() or int(gpus) < 2:
            return ""
        return (
            f"this host has {gpus} GPUs, but no launcher has started this process: there is one rank on each "
            f"of {counted(len(hosts), 'host')}, and all GPUs but one are idle; set "
            "SAGEMAKER_TRAINING_MODULE=smdp.sagemaker:main, which starts a rank per GPU, or start the script "
            "with smdp run or torchrun"
        )


def read_hosts(environ: Mapping[str, str]) -> tuple[list[str], str]:
    """Give the job's hosts in the order of the list, and this one, from SM_HOSTS or resourceconfig.json.

    Raises:
        ConfigError: The list is none, names a host twice, or does not name this one.
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
            message = f"JSON with hosts and current_host ({type(error).__name__})"
            raise config.invalid("resourceconfig.json", where, message) from None
    if not isinstance(hosts, list) or not hosts or not all(isinstance(host, str) for host in hosts):
        raise config.invalid(where, text or hosts, allowed)
    if len(set(hosts)) < len(hosts):
        raise config.invalid(where, hosts, f"{allowed}, each once")
    if current is None or current not in hosts:
        raise config.invalid(current_name, current or "", f"one of {', '.join(hosts)}")
    return hosts, current


def resource_config_file(environ: Mapping[str, str]) -> str:
    """Give the path of resourceconfig.json."""
    base = config.read(environ, "SAGEMAKER_BASE_DIR") or "/opt/ml"
    return os.path.join(base, "input", "config", "resourceconfig.json")
