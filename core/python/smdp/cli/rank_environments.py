"""What every rank that is started here finds in its environment."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from smdp import config
from smdp.cli import system
from smdp.environments.base import MOST_RANKS
from smdp.environments.torch_port import smdp_port

# Threads of OpenMP's loops, TensorFlow's operations and its graphs; each takes all cores by default.
_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")

# Else glibc hands memory that a step frees back to the system, and the next step faults every page in again.
_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": 32 << 20,
    "MALLOC_TOP_PAD_": 64 << 20,
    "MALLOC_TRIM_THRESHOLD_": 1 << 30,
}


@dataclass(frozen=True)
class Place:
    """Where this machine's ranks stand in a job of several machines.

    Attributes:
        first_rank: Rank of the first process started here.
        world_size: Ranks of all machines.
        master_addr: Name or address of the machine of rank 0.
        master_port: MASTER_PORT of all ranks.
    """

    first_rank: int
    world_size: int
    master_addr: str
    master_port: int


def rank_environments(
    environ: Mapping[str, str], nproc: int, *, master_port: int | None = None, place: Place | None = None
) -> list[dict[str, str]]:
    """Make the environment of every rank started here: SMDP_* and torch's env:// variables, a fresh secret.

    With SMDP_COMPAT=1 they also have Open MPI's ranks.

    Args:
        environ: What all ranks get besides.
        nproc: Number of ranks here.
        master_port: MASTER_PORT, where all ranks are here.
        place: Default: all ranks are here.

    Raises:
        ConfigError: There are too few or too many ranks, or master_port is not free.
    """
    if not 1 <= nproc <= MOST_RANKS:
        raise config.invalid("-n", nproc, f"1 to {MOST_RANKS}")
    if place is None:
        port = free_ports() if master_port is None else master_port
        if master_port is not None and not (_is_free(port) and _is_free(smdp_port(port))):
            raise config.invalid("--master-port", port, "a port that is free, and so is the next one")
        place = Place(0, nproc, "127.0.0.1", port)
    common = dict(environ)
    # What another launcher around us says is about its processes, not about ours.
    for name in ("GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        common.pop(name, None)
    common.update(
        WORLD_SIZE=str(place.world_size),
        LOCAL_WORLD_SIZE=str(nproc),
        MASTER_ADDR=place.master_addr,
        MASTER_PORT=str(place.master_port),
        SMDP_WORLD_SIZE=str(place.world_size),
        SMDP_LOCAL_WORLD_SIZE=str(nproc),
        SMDP_MASTER_ADDR=place.master_addr,
        SMDP_MASTER_PORT=str(smdp_port(place.master_port)),
    )
    has_secret = config.read(common, "SMDP_SECRET") or config.read(common, "SMDP_SECRET_FILE")
    if not has_secret and nproc == place.world_size:  # else rank 0 draws one and hands it out
        common["SMDP_SECRET"] = secrets.token_hex(32)
    common.setdefault("PYTHONUNBUFFERED", "1")
    if not any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in common):
        common.update({name: str(size) for name, size in _MALLOC.items()})
    threads = str(max(1, int(system.available_cores()) // nproc))
    for name in _THREADS:
        if common.get(name):
            continue
        common[name] = threads
        if (common.get("SMDP_LOG_LEVEL") or "").lower() == "debug":
            with contextlib.suppress(OSError):
                os.write(2, f"smdp: {name}={threads}: cores / ranks\n".encode())
    is_compat = bool(config.read_bool(common, "SMDP_COMPAT"))
    result = []
    for local_rank in range(nproc):
        rank = place.first_rank + local_rank
        own = {"RANK": rank, "LOCAL_RANK": local_rank, "SMDP_RANK": rank, "SMDP_LOCAL_RANK": local_rank}
        if is_compat:
            own |= _as_open_mpi(rank, place.world_size, local_rank, nproc)
        result.append({**common, **{name: str(value) for name, value in own.items()}})
    return result


def _as_open_mpi(rank: int, world_size: int, local_rank: int, local_size: int) -> dict[str, int]:
    """Returns what scripts for SMDDP read, which its launcher starts by mpirun.

    What leads MPI libraries and others to mpirun itself (PMIX_*, OMPI_MCA_*) stays out.
    """
    numbers = {"RANK": rank, "SIZE": world_size, "LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size}
    return {f"OMPI_COMM_WORLD_{name}": number for name, number in numbers.items()}


def free_ports() -> int:
    """Find a port that is free together with the next one.

    It lies below the range from which the kernel serves outgoing connections, so that none takes it before
    rank 0 does.
    """
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            low = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        low = 32768
    first, last = (15000, low - 2) if low > 17000 else (20000, 65000)
    draw = random.SystemRandom()
    for _ in range(1000):
        port = draw.randint(first, last)
        if _is_free(port) and _is_free(smdp_port(port)):
            return port
    raise OSError(errno.EADDRINUSE, f"no two free ports between {first} and {last}")


def _is_free(port: int) -> bool:
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
    return True
