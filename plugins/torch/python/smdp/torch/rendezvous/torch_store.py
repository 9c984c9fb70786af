"""torch's store at an address, which rank 0 creates and the other ranks connect to.

torch's handlers make rank 0 wait until all ranks have connected, and know only how many have. Here the store
does not wait for other ranks. They join in `sessions`, which names the missing ones.
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
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlencode, urlparse

from torch.distributed import DistError, default_pg_timeout
from torch.distributed.distributed_c10d import Store

from smdp._arguments import seconds
from smdp._errors import ConfigError, TimeoutError
from smdp.torch.rendezvous.start import start

_POLL_S = 0.005
_POLL_MAX_S = 0.2
_GRACE_S = 5.0  # lets torch's own error, which is more precise, come first
_SLICE_S = 1.0
_MOST_OF_A_CALL_S = 5.0  # short, because a network that drops packets may come up meanwhile

# Rank 0 keeps its store until the process ends. Another rank may call init_process_group() again while rank 0
# is still leaving the old world, and must not use a store that is about to close. torch's next store on the
# same port shares its server. A world of one rank keeps no store, so its port becomes free.
_served: Store | None = None

Handler = Callable[..., Iterator[tuple[Store, int, int]]]


def limit_of(options: dict[str, Any], default_s: float) -> float:
    """Returns the seconds that ranks may take to join: the caller's timeout=, or the default.

    Raises:
        ValueError: The timeout is not above 0.
    """
    timeout = options.get("timeout", default_pg_timeout)
    # torch passes its default of half an hour if the caller gave no timeout.
    return default_s if timeout == default_pg_timeout else seconds("timeout", timeout.total_seconds())


def open_store(
    torchs: Handler,
    url: str,
    options: dict[str, Any],
    rank: int,
    size: int,
    place: tuple[str, int],
    where: str,
    limit_s: float,
) -> Iterator[tuple[Store, int, int]]:
    """Creates the store or connects to it, with a limit for every wait.

    Args:
        torchs: torch's handler of the URL.
        url: The URL given to `init_process_group`.
        options: Options of torch's handler.
        rank: The rank of this process.
        size: The number of ranks.
        place: The address and port of the store.
        where: The address as the program was given it, for messages.
        limit_s: The longest time to wait for the store, in seconds.

    Yields:
        The store, the rank and the world size.

    Raises:
        smdp.ConfigError: The port is taken.
        smdp.TimeoutError: There is no store at the address.
    """
    deadline = time.monotonic() + limit_s
    serves = rank == 0 and not _is_served_by_agent()
    if not serves and not _is_answered(place, deadline):
        raise TimeoutError(
            f"[smdp] rank {rank} of {size}: nothing listens at {where} after {limit_s:g} s. Rank 0, or the"
            " launcher that holds the store, has not started or has already ended. Check that it is running,"
            " with the same address and port. SMDP_INIT_TIMEOUT, or timeout=, sets the wait."
        )
    options = {**options, "timeout": timedelta(seconds=max(deadline - time.monotonic(), 1.0))}
    attempts = torchs(_url_of_one(url, rank), **options)
    try:
        # The process that serves the store does not wait for another process.
        found = _wait_for_store(attempts, math.inf if serves else deadline)
    except DistError as error:
        if errno.errorcode[errno.EADDRINUSE] in str(error):
            raise ConfigError(
                f"[smdp] rank 0 of {size} cannot listen at {where}, because the port is in use: by another"
                " job, an earlier run, or another process that was started as rank 0. Choose a free port on"
                f" all ranks ({error})."
            ) from error
        raise TimeoutError(
            f"[smdp] rank {rank} of {size}: there is no store at {where} after {limit_s:g} s. Check that rank"
            " 0 is running, with the same address and port. SMDP_INIT_TIMEOUT, or timeout=, sets the wait."
            f" torch reports: {error}"
        ) from error
    if found is None:
        raise TimeoutError(
            f"[smdp] rank {rank} of {size}: a process listens at {where}, but has not answered like torch's"
            f" store within {limit_s:g} s. Either another program uses the port, or rank 0 is stopped."
            " Choose a free port on all ranks."
        )
    global _served
    _served = found[0] if serves and size > 1 else None
    start.found(where, limit_s)
    yield found[0], rank, size
    yield from attempts


def _is_served_by_agent() -> bool:
    """Returns whether torchrun's agent serves the store, so that rank 0 is a client as well."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


def _url_of_one(url: str, rank: int) -> str:
    """Returns the URL with a world size of 1, so that torch's store waits for no other rank."""
    parts = urlparse(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    return parts._replace(query=urlencode({**query, "rank": rank, "world_size": 1})).geturl()


def _wait_for_store(
    attempts: Iterator[tuple[Store, int, int]], deadline: float
) -> tuple[Store, int, int] | None:
    """Runs torch's first attempt on a thread, because torch's wait ignores Ctrl-C and may never end.

    Returns:
        The store, rank and world size, or None if torch is still waiting some time after the deadline.
    """
    ended: queue.SimpleQueue[tuple[Store, int, int] | Exception] = queue.SimpleQueue()

    def attempt() -> None:
        try:
            ended.put(next(attempts))
        except Exception as error:  # noqa: BLE001 - raised in the waiting thread
            ended.put(error)

    threading.Thread(target=attempt, name="smdp-store", daemon=True).start()
    deadline += _GRACE_S
    while True:  # in slices, because a signal right before a wait would be handled only after it
        try:
            found = ended.get(timeout=min(max(deadline - time.monotonic(), 0), _SLICE_S))
            break
        except queue.Empty:
            if time.monotonic() >= deadline:
                return None
    if isinstance(found, Exception):
        raise found
    return found


def _is_answered(place: tuple[str, int], deadline: float) -> bool:
    """Returns whether a process listens at the address before the deadline. torch may wait far longer."""
    pause = _POLL_S
    while (left := deadline - time.monotonic()) > 0:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(place, timeout=min(left, _MOST_OF_A_CALL_S)),
        ):
            return True
        time.sleep(min(pause, max(deadline - time.monotonic(), 0)))
        pause = min(1.5 * pause, _POLL_MAX_S)
    return False
