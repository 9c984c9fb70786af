"""torch's store at an address: rank 0 makes it, the others connect, without a wait for missing ranks.

torch's own handlers let rank 0 wait until all ranks have connected, and know only how many have come. Ranks
meet in `rendezvous` instead, which names those that are missing.
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
_GRACE_S = 5.0  # in which torch's own error, which says more, comes first
_SLICE_S = 1.0
_MOST_OF_A_CALL_S = 5.0  # a network that drops calls may come up meanwhile

# Rank 0's store, until its process ends: another rank that has left a world may call init_process_group()
# again while rank 0 is still leaving that world, and must not meet at a store that goes with it. torch's next
# store of the same port shares its server. A world of one rank has no other, and so keeps no port.
_served: Store | None = None

Handler = Callable[..., Iterator[tuple[Store, int, int]]]


def limit_of(options: dict[str, Any], default_s: float) -> float:
    """Returns how long ranks may take to meet: the caller's timeout=, or else the default.

    Raises:
        ValueError: The timeout is not above 0.
    """
    timeout = options.get("timeout", default_pg_timeout)
    # torch's own default is half an hour; the caller has not asked for it.
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
    """Makes the store, or connects to it, with an end to every wait.

    Args:
        torchs: torch's own handler of the url.
        url: What `init_process_group` was given.
        options: For torch's handler.
        rank: This process's.
        size: Number of ranks.
        place: Address and port at which rank 0, or the launcher, has the store.
        where: The same in the words in which the program was told.
        limit_s: How long to wait for it.

    Raises:
        smdp.ConfigError: The port is taken.
        smdp.TimeoutError: There is no store at that place.
    """
    deadline = time.monotonic() + limit_s
    serves = rank == 0 and not _is_served_by_agent()
    if not serves and not _is_answered(place, deadline):
        raise TimeoutError(
            f"[smdp] rank {rank} of {size}: nothing listens at {where} "
            f"after {limit_s:g} s, so rank 0, or the launcher that holds the store, is missing: it has not "
            "come, or has left already. Is it running, with the same address and port? "
            "SMDP_INIT_TIMEOUT, or timeout=, sets the wait."
        )
    options = {**options, "timeout": timedelta(seconds=max(deadline - time.monotonic(), 1.0))}
    attempts = torchs(_url_of_one(url, rank), **options)
    try:
        # Who serves the store does not wait for another process.
        found = _wait_for_store(attempts, math.inf if serves else deadline)
    except DistError as error:
        if errno.errorcode[errno.EADDRINUSE] in str(error):
            raise ConfigError(
                f"[smdp] rank 0 of {size} cannot listen at {where}: another job, an older one, or another "
                f"process that was started as rank 0 does. Choose a free port on all ranks ({error})"
            ) from error
        raise TimeoutError(
            f"[smdp] rank {rank} of {size}: there is no store at {where} after {limit_s:g} s. Is rank 0 "
            "running, with the same address and port? SMDP_INIT_TIMEOUT, or timeout=, sets the wait. torch "
            f"says: {error}"
        ) from error
    if found is None:
        raise TimeoutError(
            f"[smdp] rank {rank} of {size}: what listens at {where} has "
            f"not answered as torch's store does within {limit_s:g} s: it is another program, or rank 0's "
            "is stopped. Choose a free port on all ranks."
        )
    global _served
    _served = found[0] if serves and size > 1 else None
    start.found(where, limit_s)
    yield found[0], rank, size
    yield from attempts


def _is_served_by_agent() -> bool:
    """Returns whether torchrun's agent has the store, so that torch makes rank 0 a client, too."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


def _url_of_one(url: str, rank: int) -> str:
    """Returns the url with a world of one rank: torch's store then waits for no other."""
    parts = urlparse(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    return parts._replace(query=urlencode({**query, "rank": rank, "world_size": 1})).geturl()


def _wait_for_store(
    attempts: Iterator[tuple[Store, int, int]], deadline: float
) -> tuple[Store, int, int] | None:
    """Takes torch's first attempt, on a thread: its wait hears no Ctrl-C, and one for an answer has no end.

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


def _is_answered(place: tuple[str, int], deadline: float) -> bool:
    """Waits until something listens there: torch's own wait may take twice its limit, and more."""
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
