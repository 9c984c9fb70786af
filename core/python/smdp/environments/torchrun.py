"""torchrun, Ray Train, Kubeflow's PyTorchJob: whatever sets torch's env:// variables."""

from __future__ import annotations

from collections.abc import Mapping

from smdp import config
from smdp.environments.base import PLACEHOLDER, Environment, Launch, make_launch, read_ranks


class Torchrun(Environment):
    """RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; smdp's store listens on MASTER_PORT + 1."""

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
        """Tell whether torchrun is at work, or someone who sets the same variables."""
        if config.read(environ, "TORCHELASTIC_RUN_ID"):
            return True
        return bool(config.read(environ, "RANK")) and any(
            config.read(environ, name) for name in ("WORLD_SIZE", "MASTER_ADDR")
        )

    @classmethod
    def launch(cls, environ: Mapping[str, str]) -> Launch:
        """Read torch's variables."""
        ranks = read_ranks(environ, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        # No name for the job: torchrun takes what each host is told, and "none" by default.
        return make_launch(environ, ranks, cls.name, seed=environ.get("TORCHELASTIC_RUN_ID", ""))
