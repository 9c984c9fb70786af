"""Detects pods of an Indexed Job or JobSet of Kubernetes."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from smdp import config
from smdp._errors import ConfigError
from smdp.environments.base import Environment, Launch, make_launch, read_ranks


class Kubernetes(Environment):
    """One rank per pod: JOB_COMPLETION_INDEX is the rank, and the pod's specification sets SMDP_WORLD_SIZE.

    With a headless service, pods have names of the form <job>-<index>.<subdomain>..., which gives rank 0's
    name. Otherwise, SMDP_MASTER_ADDR must be set.
    """

    name = "Kubernetes index"
    variables = ("JOB_COMPLETION_INDEX", "KUBERNETES_SERVICE_HOST", "HOSTNAME")
    master_hint = "set SMDP_MASTER_ADDR in the pod's specification, or give the job a headless service"

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Returns whether this is a pod of an Indexed Job."""
        return bool(config.read(environ, "JOB_COMPLETION_INDEX")) and bool(
            config.read(environ, "KUBERNETES_SERVICE_HOST")
        )

    @classmethod
    def launch(cls, environ: Mapping[str, str]) -> Launch:
        """Returns this process's place in its job, from JOB_COMPLETION_INDEX and SMDP_WORLD_SIZE."""
        if config.read(environ, "SMDP_WORLD_SIZE") is None:
            index = environ["JOB_COMPLETION_INDEX"]
            raise ConfigError(
                f"JOB_COMPLETION_INDEX={index!r} is set but SMDP_WORLD_SIZE is not; set SMDP_WORLD_SIZE to "
                "the job's completions, or to 1 for pods that train independently. In the manifest: "
                'env: [{name: SMDP_WORLD_SIZE, value: "<completions>"}]'
            )
        if config.read_int(environ, "SMDP_WORLD_SIZE", minimum=1) == 1:
            environ = {**environ, "JOB_COMPLETION_INDEX": "0"}
        ranks = read_ranks(environ, "JOB_COMPLETION_INDEX", "SMDP_WORLD_SIZE")
        return make_launch(
            environ,
            ranks,
            cls.name,
            master_addr=_first_pod(socket.getfqdn(), ranks.rank),
            seed=environ.get("HOSTNAME", "").removesuffix(f"-{ranks.rank}"),
        )


def _first_pod(name: str, index: int) -> str:
    """Returns the name of pod 0, derived from this pod's name and index; empty if it cannot be derived."""
    label, _, domain = name.partition(".")
    if not domain or not label.endswith(f"-{index}"):
        return ""
    return f"{label.removesuffix(f'-{index}')}-0.{domain}"
