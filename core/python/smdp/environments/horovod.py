"""Detects ranks started by horovodrun."""

from __future__ import annotations

from collections.abc import Mapping

from smdp import config
from smdp.environments.base import Environment, Launch, make_launch, read_ranks


class Horovod(Environment):
    """horovodrun, which sets HOROVOD_*. Rank 0 is assumed to be on the host of its rendezvous server."""

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
        """Returns whether horovodrun started this process."""
        return bool(config.read(environ, "HOROVOD_RANK"))

    @classmethod
    def launch(cls, environ: Mapping[str, str]) -> Launch:
        """Returns this process's place in its job, from HOROVOD_*."""
        ranks = read_ranks(
            environ, "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"
        )
        addr = config.read(environ, "HOROVOD_GLOO_RENDEZVOUS_ADDR") or ""
        job = addr + ":" + environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "")
        return make_launch(environ, ranks, cls.name, master_addr=addr, job=job)
