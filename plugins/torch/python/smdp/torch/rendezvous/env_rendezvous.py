"""torch's env:// under any launcher, with the launcher's variables in place of missing torch variables.

torch reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which torchrun sets, but mpirun and srun do not.
The entry point calls `rendezvous` before torch's handler, for groups over smdp only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlparse

from torch.distributed.distributed_c10d import Store

from smdp.config import Config, read, read_port
from smdp.environments import detect, find, log_choice
from smdp.environments.base import LOOPBACK, read_ranks
from smdp.environments.choice import warn_alone
from smdp.environments.given_ranks import check_given_ranks
from smdp.environments.master import check_master, is_here, warn_if_elsewhere
from smdp.environments.torch_port import free_port
from smdp.environments.torch_variables import set_torch_variables
from smdp.torch.rendezvous.start import start
from smdp.torch.rendezvous.torch_store import Handler, limit_of, open_store

_RANKS = ("RANK", "WORLD_SIZE")
_MASTER = ("MASTER_ADDR", "MASTER_PORT")


def rendezvous(torchs: Handler, url: str, **options: Any) -> Iterator[tuple[Store, int, int]]:
    """Sets torch's variables from the launcher, checks the master's name, and continues like torch.

    Args:
        torchs: torch's handler of env://.
        url: An env:// URL, which may have `rank` and `world_size`.
        options: Options of torch's handler.

    Yields:
        The store, the rank and the world size.

    Raises:
        smdp.ConfigError: A variable of torch or of the launcher is not valid, the master's name cannot be
            resolved, or its port is taken.
        ValueError: The timeout is not above 0.
        smdp.TimeoutError: There is no store at the master's address.
    """
    log_choice()
    before = dict(os.environ)  # without the variables set below
    arguments = parse_qs(urlparse(url).query)
    needed = [name for name in _RANKS if name.lower() not in arguments]
    if any(not read(os.environ, name) for name in (*needed, *_MASTER)):
        start.job = detect(needs_master=False).job
        has_launcher = set_torch_variables()
        if not has_launcher and len(needed) == 2 and not any(read(os.environ, name) for name in needed):
            master = read(os.environ, "MASTER_ADDR")
            if master is None or is_here(master):  # else this is part of a job, and torch reports the rank
                _be_alone()
    address, port = (read(os.environ, name) for name in _MASTER)
    rank, size = (arguments.get(name.lower(), [read(os.environ, name)])[0] for name in _RANKS)
    _check(arguments, rank, size, before)
    limit_s = limit_of(options, Config.from_environ().init_timeout_s)
    if address:
        check_master(address, find(before).name, limit_s, before)
        if rank == "0" and size != "1":
            warn_if_elsewhere(address)
    if not (rank and size and address and port):
        yield from torchs(url, **options)  # torch reports what is missing
        return
    where = f"MASTER_ADDR={address}, MASTER_PORT={port}"
    yield from open_store(torchs, url, options, int(rank), int(size), (address, int(port)), where, limit_s)


def _check(
    arguments: Mapping[str, list[str]], rank: str | None, size: str | None, environ: Mapping[str, str]
) -> None:
    """Checks the values that torch is about to read. torch reports missing ones.

    Raises:
        smdp.ConfigError: A rank, world size or port is not valid, or differs from the launcher's.
    """
    if rank is not None and size is not None:
        names = [name.lower() if name.lower() in arguments else name for name in _RANKS]
        values = dict(zip(names, (rank, size), strict=True))
        if rank.isdecimal() and size.isdecimal():
            given = ", ".join(f"{name}={value}" for name, value in values.items())
            check_given_ranks(int(rank), int(size), f"init_process_group() with {given}", environ)
        read_ranks(values, *names)
    if size != "1" or read(os.environ, "MASTER_PORT") != "0":  # torch lets a single rank choose any port
        read_port(os.environ, "MASTER_PORT")


def _be_alone() -> None:
    warn_alone()
    known = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": LOOPBACK}
    for name, value in {**known, "MASTER_PORT": free_port()}.items():
        os.environ.setdefault(name, str(value))
