"""The name of rank 0's host: whether it is this one, and whether it is known here."""

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
    """Tell whether a host name or address is this machine's."""
    if name == socket.gethostname():
        return True
    with contextlib.suppress(OSError, UnicodeError):
        for family, kind, protocol, _, address in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return True
    return False


def of_launcher(launcher_host: str, ranks: Ranks, environ: Mapping[str, str]) -> str:
    """Give where rank 0 is, as far as it follows from SLURM's job, or else from where its launcher runs.

    Rank 0 alone can know, and gives nothing where it is elsewhere: its error ends the job before the others
    have waited for long.
    """
    if ranks.is_one_host:
        return ""
    # The same on all ranks: mpirun may run on a login node, which is none of the job's.
    if host := first_host_of_job(environ):  # what SLURM calls a host need not be a name that is known
        return "" if ranks.rank == 0 and _is_elsewhere(host) else host
    return "" if ranks.rank == 0 and not is_here(launcher_host) else launcher_host


def warn_if_elsewhere(master_addr: str) -> None:
    """Warn, on rank 0, if the address that all are given is not this host's, or nobody's."""
    if not is_here(master_addr):
        _log.follow()
        _logger.warning(
            "[smdp] rank 0 runs on host %s, and %s, where all look for it, is no address of this host; "
            "unless it leads here (a service, a forwarded port), SMDP_MASTER_ADDR or MASTER_ADDR is wrong "
            "and ranks cannot meet",
            socket.gethostname(),
            master_addr,
        )


def _is_elsewhere(name: str) -> bool:
    """Tell whether a host is known and not this one."""
    try:
        socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False  # check_master() tells
    return not is_here(name)


def check_master(
    master_addr: str, source: str, timeout_s: float, environ: Mapping[str, str] = os.environ
) -> None:
    """Wait a little until the name of rank 0's host is known here.

    Args:
        master_addr: The name or address.
        source: The launcher, for the message.
        timeout_s: Most seconds to wait. Only in Kubernetes, where a pod's name appears with the pod, are they
            used up; elsewhere it is 10.
        environ: The variables.

    Raises:
        ConfigError: It is not known.
    """
    in_kubernetes = bool(config.read(environ, "KUBERNETES_SERVICE_HOST"))
    patience_s = timeout_s if in_kubernetes else min(timeout_s, _PATIENCE_S)
    deadline = time.monotonic() + patience_s
    given = next((name for name in ("SMDP_MASTER_ADDR", "MASTER_ADDR") if config.read(environ, name)), None)
    what = f"{given}={master_addr!r}" if given else f"rank 0's host {master_addr!r}, as {source} gives it,"
    has_warned = False
    while True:
        try:
            socket.getaddrinfo(master_addr, None, type=socket.SOCK_STREAM)
            return
        except (OSError, UnicodeError) as error:
            if time.monotonic() >= deadline:
                raise ConfigError(
                    f"[smdp] {what} is unknown on host {socket.gethostname()} after {patience_s:g} s "
                    f"({error}); {'correct' if given else 'set SMDP_MASTER_ADDR to'} the name or address by "
                    "which every host reaches rank 0's"
                ) from None
            if not has_warned:
                _log.follow(environ)
                _logger.warning(
                    "[smdp] %s is unknown on host %s (%s); trying for %g s",
                    what, socket.gethostname(), error, patience_s,
                )  # fmt: skip
                has_warned = True
        time.sleep(_POLL_S)
