"""horovodrun."""

from __future__ import annotations

from collections.abc import Mapping

from smdp import config
from smdp.environments.base import Environment, Launch, make_launch, read_ranks


class Horovod(Environment):
    """HOROVOD_*; on several hosts rank 0 is taken to be where horovodrun runs its rendezvous."""

    name = "Horovod"
    variables = (
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR",
        "HOROVOD_GLOO_RENDEZVOUS_PORT",
    )

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Tell whether horovodrun is at work."""
        return bool(config.read(environ, "HOROVOD_RANK"))

    @classmethod
    def launch(cls, environ: Mapping[str, str]) -> Launch:
        """Read HOROVOD_*."""
        ranks = read_ranks(
            environ, "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"
        )
        addr = config.read(environ, "HOROVOD_GLOO_RENDEZVOUS_ADDR") or ""
        job = addr + ":" + environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "")
        return make_launch(environ, ranks, cls.name, master_addr=addr, job=job)
