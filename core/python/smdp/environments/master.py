"""The name of rank 0's host: whether it is this host, and whether it can be resolved here."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Mapping

from smdp import _log, config
from smdp._errors import ConfigError
from smdp.environments.base import Ranks
from smdp.environments.slurm import first_host_of_job

_PATIENCE_S = 10.0
_POLL_S = 0.5
_logger = logging.getLogger("smdp.environments")


def is_here(name: str) -> bool:
    """Returns whether a host name or address belongs to this machine."""
    if name == socket.gethostname():
        return True
    with contextlib.suppress(OSError, UnicodeError):
        for family, kind, protocol, _, address in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return True
    return False


def of_launcher(launcher_host: str, ranks: Ranks, environ: Mapping[str, str]) -> str:
    """Returns the host of rank 0, assuming the first host of the SLURM job, or else the launcher's host.

    Only rank 0 can check the assumption. If it is wrong, rank 0 gets an empty text, and its error ends the
    job before the other ranks have waited long.
    """
    if ranks.is_one_host:
        return ""
    # The same on all ranks. mpirun's own host may be a login node, which is not part of the job.
    if host := first_host_of_job(environ):  # SLURM's name of a host may not be resolvable
        return "" if ranks.rank == 0 and _is_elsewhere(host) else host
    return "" if ranks.rank == 0 and not is_here(launcher_host) else launcher_host


def warn_if_elsewhere(master_addr: str) -> None:
    """Logs a warning on rank 0 if the master address does not belong to this host."""
    if not is_here(master_addr):
        _log.follow()
        _logger.warning(
            "[smdp] rank 0 runs on host %s, but the master address %s, which all ranks connect to, is not an "
            "address of this host. Unless it leads here (a service or a forwarded port), SMDP_MASTER_ADDR or "
            "MASTER_ADDR is wrong and the other ranks cannot join",
            socket.gethostname(),
            master_addr,
        )


def _is_elsewhere(name: str) -> bool:
    """Returns whether a host name can be resolved and is not this host's."""
    try:
        socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False  # check_master() reports it
    return not is_here(name)


def check_master(
    master_addr: str, source: str, timeout_s: float, environ: Mapping[str, str] = os.environ
) -> None:
    """Waits until the name of rank 0's host can be resolved here.

    Args:
        master_addr: The name or address.
        source: The launcher, for the message.
        timeout_s: The most seconds to wait. Outside Kubernetes, where names do not appear only when a pod
            starts, at most 10 seconds are used.
        environ: The environment variables.

    Raises:
        ConfigError: The name cannot be resolved.
    """
    in_kubernetes = bool(config.read(environ, "KUBERNETES_SERVICE_HOST"))
    patience_s = timeout_s if in_kubernetes else min(timeout_s, _PATIENCE_S)
    deadline = time.monotonic() + patience_s
    given = next((name for name in ("SMDP_MASTER_ADDR", "MASTER_ADDR") if config.read(environ, name)), None)
    what = f"{given}={master_addr!r}" if given else f"rank 0's host {master_addr!r}, provided by {source},"
    has_warned = False
    while True:
        try:
            socket.getaddrinfo(master_addr, None, type=socket.SOCK_STREAM)
            return
        except (OSError, UnicodeError) as error:
            if time.monotonic() >= deadline:
                raise ConfigError(
                    f"[smdp] {what} cannot be resolved on host {socket.gethostname()} after {patience_s:g} s "
                    f"({error}); set {given or 'SMDP_MASTER_ADDR'} to a name or address at which every host "
                    "can reach rank 0's host"
                ) from None
            if not has_warned:
                _log.follow(environ)
                _logger.warning(
                    "[smdp] %s cannot be resolved on host %s (%s); retrying for %g s",
                    what, socket.gethostname(), error, patience_s,
                )  # fmt: skip
                has_warned = True
        time.sleep(_POLL_S)
