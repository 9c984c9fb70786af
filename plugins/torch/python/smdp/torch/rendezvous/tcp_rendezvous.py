"""torch's tcp:// for groups over smdp, whose URL has the address, the rank and the world size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlparse

from torch.distributed.distributed_c10d import Store

from smdp.config import Config
from smdp.environments.base import read_ranks
from smdp.torch.rendezvous.torch_store import Handler, limit_of, open_store


def rendezvous(torchs: Handler, url: str, **options: Any) -> Iterator[tuple[Store, int, int]]:
    """Connects to the store like torch, except that errors name missing ranks.

    Args:
        torchs: torch's handler of tcp://.
        url: A tcp:// URL with an address, a port, `rank` and `world_size`.
        options: Options of torch's handler.

    Yields:
        The store, the rank and the world size.

    Raises:
        smdp.ConfigError: The rank or the world size is not valid, or the port is taken.
        ValueError: The timeout is not above 0.
        smdp.TimeoutError: There is no store at the address.
    """
    parts = urlparse(url)
    ranks = {
        name: values[0] for name, values in parse_qs(parts.query).items() if name in ("rank", "world_size")
    }
    if not parts.hostname or not parts.port or len(ranks) < 2:
        yield from torchs(url, **options)  # torch reports what is missing
        return
    known = read_ranks(ranks, "rank", "world_size")
    place = parts.hostname, parts.port
    limit_s = limit_of(options, Config.from_environ().init_timeout_s)
    where = f"tcp://{parts.hostname}:{parts.port}"
    yield from open_store(torchs, url, options, known.rank, known.world_size, place, where, limit_s)
