"""torch's env:// under any launcher: where torch's variables are missing, the launcher's are read.

torch reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which torchrun sets and mpirun and srun do not. The
entry point puts `rendezvous` before torch's own handler, for groups over smdp only.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlparse

from torch.distributed import DistError, default_pg_timeout
from torch.distributed.distributed_c10d import Store

from smdp._errors import ConfigError, TimeoutError
from smdp.config import Config, read, read_port
from smdp.environments import detect, find, log_choice
from smdp.environments.base import LOOPBACK, read_ranks
from smdp.environments.choice import warn_alone
from smdp.environments.given_ranks import check_given_ranks
from smdp.environments.master import check_master, is_here, warn_if_elsewhere
from smdp.environments.torch_variables import free_port, set_torch_variables
from smdp.torch.rendezvous import set_job
from smdp.torch.work import seconds_of

_RANKS = ("RANK", "WORLD_SIZE")
_MASTER = ("MASTER_ADDR", "MASTER_PORT")
_POLL_S = 0.005
_POLL_MAX_S = 0.2
_GRACE_S = 5.0  # in which torch's own error, which says more, comes first
_SLICE_S = 1.0
_MOST_OF_A_CALL_S = 5.0  # a network that drops calls may come up meanwhile

# Rank 0's store, until its process ends: a rank that has ended a world may call init_process_group() again
# while rank 0 still ends that world, and must not meet at a store that goes with it. torch's next store of
# the same port shares its server.
_served: Store | None = None

Handler = Callable[..., Iterator[tuple[Store, int, int]]]


def rendezvous(torchs: Handler, url: str, **options: Any) -> Iterator[tuple[Store, int, int]]:
    """Fill in torch's variables from the launcher, look at the master's name, and go on as torch does.

    Args:
        torchs: torch's own handler of env://.
        url: env://, perhaps with `rank` and `world_size`.
        options: For torch's handler.

    Raises:
        smdp.ConfigError: torch's or the launcher's variables make no sense, the master's name is unknown
            here, or its port is taken.
        ValueError: The timeout is not above 0.
        smdp.TimeoutError: Not all ranks came.
    """
    log_choice()
    before = dict(os.environ)  # what is filled in below is nobody's wish
    arguments = parse_qs(urlparse(url).query)
    needed = [name for name in _RANKS if name.lower() not in arguments]
    if any(not read(os.environ, name) for name in (*needed, *_MASTER)):
        set_job(detect(needs_master=False).job)
        has_launcher = set_torch_variables()
        if not has_launcher and len(needed) == 2 and not any(read(os.environ, name) for name in needed):
            master = read(os.environ, "MASTER_ADDR")
            if master is None or is_here(master):  # else it is a job's, and torch says which rank is missing
                _be_alone()
    address, port = (read(os.environ, name) for name in _MASTER)
    rank, size = (arguments.get(name.lower(), [read(os.environ, name)])[0] for name in _RANKS)
    _check(arguments, rank, size, before)
    timeout_s = Config.from_environ().init_timeout_s
    if address:
        check_master(address, find(before).name, timeout_s, before)
        if rank == "0" and size != "1":
            warn_if_elsewhere(address)
    if options.get("timeout") == default_pg_timeout:  # half an hour, which nobody has asked for
        options["timeout"] = timedelta(seconds=timeout_s)
    elif "timeout" in options:
        timeout_s = seconds_of(options["timeout"])
        options["timeout"] = timedelta(seconds=timeout_s)
    deadline = time.monotonic() + timeout_s
    if rank not in (None, "0") and address and port and not _is_answered(address, port, deadline):
        raise TimeoutError(
            f"[smdp] rank {rank} of {size}: nobody listens at MASTER_ADDR={address}, MASTER_PORT={port} "
            f"after {timeout_s:g} s, so rank 0, or the launcher that holds the store, has not "
            "come. Is it running, with the same address and port? "
            "SMDP_INIT_TIMEOUT, or timeout=, sets the wait."
        )
    if "timeout" in options:
        options["timeout"] = timedelta(seconds=max(deadline - time.monotonic(), 1.0))
    attempts = torchs(url, **options)
    try:
        # Rank 0 has the store itself, and torch keeps to the timeout there.
        is_client = rank != "0" and "timeout" in options
        found = _wait_for_store(attempts, deadline if is_client else math.inf)
    except DistError as error:
        if errno.errorcode[errno.EADDRINUSE] in str(error):
            raise ConfigError(
                f"[smdp] rank 0 cannot listen on MASTER_PORT={port}, since another job (or an old one) does; "
                f"set MASTER_PORT to a free port on all ranks ({error})"
            ) from error
        raise TimeoutError(
            f"[smdp] rank {rank} of {size}: not all ranks met at MASTER_ADDR={address}, MASTER_PORT={port} "
            f"within {timeout_s:g} s. Are all running, with the same address, port and world size? "
            f"SMDP_INIT_TIMEOUT, or timeout=, sets the wait. torch says: {error}"
        ) from error
    if found is None:
        raise TimeoutError(
            f"[smdp] rank {rank} of {size}: what listens at MASTER_ADDR={address}, MASTER_PORT={port} has "
            f"not answered as torch's store does within {timeout_s:g} s: it is another program, or rank 0's "
            "is stopped. Set MASTER_PORT to a free port on all ranks."
        )
    global _served
    _served = found[0] if rank == "0" else None  # this process may have been rank 0
    yield found
    yield from attempts


def _wait_for_store(
    attempts: Iterator[tuple[Store, int, int]], deadline: float
) -> tuple[Store, int, int] | None:
    """Take torch's first attempt, on a thread: its wait hears no Ctrl-C, and one for an answer has no end.

    Returns:
        None if torch is still waiting, some time after it should have given up.
    """
    ended: queue.SimpleQueue[tuple[Store, int, int] | Exception] = queue.SimpleQueue()

    def attempt() -> None:
        try:
            ended.put(next(attempts))
        except Exception as error:  # noqa: BLE001 - raised by who waits
            ended.put(error)

    threading.Thread(target=attempt, name="smdp-store", daemon=True).start()
    deadline += _GRACE_S
    while True:  # in slices: a signal right before a wait would be heard after it only
        try:
            found = ended.get(timeout=min(max(deadline - time.monotonic(), 0), _SLICE_S))
            break
        except queue.Empty:
            if time.monotonic() >= deadline:
                return None
    if isinstance(found, Exception):
        raise found
    return found


def _is_answered(address: str, port: str, deadline: float) -> bool:
    """Wait until somebody listens: torch's own wait may take twice its limit, and more."""
    pause = _POLL_S
    while (left := deadline - time.monotonic()) > 0:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((address, int(port)), timeout=min(left, _MOST_OF_A_CALL_S)),
        ):
            return True
        time.sleep(min(pause, max(deadline - time.monotonic(), 0)))
        pause = min(1.5 * pause, _POLL_MAX_S)
    return False


def _check(
    arguments: Mapping[str, list[str]], rank: str | None, size: str | None, environ: Mapping[str, str]
) -> None:
    """Look at what torch is about to read; torch itself names what is missing.

    Raises:
        smdp.ConfigError: A rank, world size or port makes no sense, or the launcher has given this process
            another place.
    """
    if rank is not None and size is not None:
        names = [name.lower() if name.lower() in arguments else name for name in _RANKS]
        values = dict(zip(names, (rank, size), strict=True))
        if rank.isdecimal() and size.isdecimal():
            given = ", ".join(f"{name}={value}" for name, value in values.items())
            check_given_ranks(int(rank), int(size), f"init_process_group() with {given}", environ)
        read_ranks(values, *names)
    if size != "1" or read(os.environ, "MASTER_PORT") != "0":  # torch lets one rank alone draw a port
        read_port(os.environ, "MASTER_PORT")


def _be_alone() -> None:
    warn_alone()
    known = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": LOOPBACK}
    for name, value in {**known, "MASTER_PORT": free_port()}.items():
        os.environ.setdefault(name, str(value))
