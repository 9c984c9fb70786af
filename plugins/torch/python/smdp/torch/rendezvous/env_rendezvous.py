"""torch's env:// under any launcher: where torch's variables are missing, the launcher's are read.

torch reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which torchrun sets and mpirun and srun do not. The
entry point puts `rendezvous` before torch's own handler, for groups over smdp only.
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
    """Fills in torch's variables from the launcher, looks at the master's name, and goes on as torch does.

    Args:
        torchs: torch's own handler of env://.
        url: env://, perhaps with `rank` and `world_size`.
        options: For torch's handler.

    Raises:
        smdp.ConfigError: torch's or the launcher's variables make no sense, the master's name is unknown
            here, or its port is taken.
        ValueError: The timeout is not above 0.
        smdp.TimeoutError: There is no store at the master's address.
    """
    log_choice()
    before = dict(os.environ)  # without what is filled in below
    arguments = parse_qs(urlparse(url).query)
    needed = [name for name in _RANKS if name.lower() not in arguments]
    if any(not read(os.environ, name) for name in (*needed, *_MASTER)):
        start.job = detect(needs_master=False).job
        has_launcher = set_torch_variables()
        if not has_launcher and len(needed) == 2 and not any(read(os.environ, name) for name in needed):
            master = read(os.environ, "MASTER_ADDR")
            if master is None or is_here(master):  # else it is a job's, and torch says which rank is missing
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
        yield from torchs(url, **options)  # which says what is missing
        return
    where = f"MASTER_ADDR={address}, MASTER_PORT={port}"
    yield from open_store(torchs, url, options, int(rank), int(size), (address, int(port)), where, limit_s)


def _check(
    arguments: Mapping[str, list[str]], rank: str | None, size: str | None, environ: Mapping[str, str]
) -> None:
    """Checks what torch is about to read; torch itself names what is missing.

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
