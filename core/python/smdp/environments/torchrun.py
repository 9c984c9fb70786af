"""Detects torch's env:// variables, set by torchrun, Ray Train, Kubeflow's PyTorchJob and others."""

from __future__ import annotations

from collections.abc import Mapping

from smdp import config
from smdp.environments.base import PLACEHOLDER, Environment, Launch, make_launch, read_ranks


class Torchrun(Environment):
    """torch's RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. smdp's store listens on MASTER_PORT + 1."""

    name = "torchrun"
    variables = (
        "TORCHELASTIC_RUN_ID",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
    )
    master_hint = f"set MASTER_ADDR={PLACEHOLDER} on every rank"

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Returns whether torchrun or another launcher that sets the same variables started this process."""
        if config.read(environ, "TORCHELASTIC_RUN_ID"):
            return True
        return bool(config.read(environ, "RANK")) and any(
            config.read(environ, name) for name in ("WORLD_SIZE", "MASTER_ADDR")
        )

    @classmethod
    def launch(cls, environ: Mapping[str, str]) -> Launch:
        """Returns this process's place in its job, from torch's variables."""
        ranks = read_ranks(environ, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        # TORCHELASTIC_RUN_ID cannot name the job: each host may be given a different one, and the default is
        # "none".
        return make_launch(environ, ranks, cls.name, seed=environ.get("TORCHELASTIC_RUN_ID", ""))
