"""Detects SMDP_RANK and related variables, which `smdp run` or the user sets."""

from __future__ import annotations

from collections.abc import Mapping

from smdp import config
from smdp.environments.base import Environment, Launch, make_launch, read_ranks
from smdp.environments.kubernetes import Kubernetes


class SmdpVariables(Environment):
    """smdp's own variables define the job."""

    name = "SMDP_* variables"
    variables = ("SMDP_RANK", "SMDP_WORLD_SIZE", "SMDP_LOCAL_RANK", "SMDP_LOCAL_WORLD_SIZE")

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Returns whether a rank or a world size is set. A world size alone may belong to Kubernetes."""
        if config.read(environ, "SMDP_RANK"):
            return True
        return bool(config.read(environ, "SMDP_WORLD_SIZE")) and not Kubernetes.detect(environ)

    @classmethod
    def launch(cls, environ: Mapping[str, str]) -> Launch:
        """Returns this process's place in its job, from SMDP_RANK, SMDP_WORLD_SIZE and related variables."""
        ranks = read_ranks(
            environ, "SMDP_RANK", "SMDP_WORLD_SIZE", "SMDP_LOCAL_RANK", "SMDP_LOCAL_WORLD_SIZE"
        )
        return make_launch(environ, ranks, cls.name)
