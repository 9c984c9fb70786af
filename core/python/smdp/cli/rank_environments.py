"""The environment variables of the ranks that `smdp run` starts."""

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

# Threads for OpenMP loops, within TensorFlow operations, and across them; each uses all cores by default.
_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")

# Keeps glibc from returning memory to the system after each step, which the next step would fault in again.
_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": 32 << 20,
    "MALLOC_TOP_PAD_": 64 << 20,
    "MALLOC_TRIM_THRESHOLD_": 1 << 30,
}


@dataclass(frozen=True)
class Place:
    """The place of this machine's ranks in a job of several machines.

    Attributes:
        first_rank: Rank of the first process on this machine.
        world_size: Number of ranks on all machines.
        master_addr: Name or address of rank 0's machine.
        master_port: MASTER_PORT of all ranks.
    """

    first_rank: int
    world_size: int
    master_addr: str
    master_port: int


def rank_environments(
    environ: Mapping[str, str], nproc: int, *, master_port: int | None = None, place: Place | None = None
) -> list[dict[str, str]]:
    """Returns the environment of every rank on this machine: SMDP_*, torch's env:// variables, and a secret.

    With SMDP_COMPAT=1, it also contains Open MPI's rank variables.

    Args:
        environ: Other variables, which all ranks get.
        nproc: Number of ranks on this machine.
        master_port: MASTER_PORT, if all ranks are on this machine. Default: a free port.
        place: Place in a job of several machines. Default: all ranks are on this machine.

    Raises:
        ConfigError: There are too few or too many ranks, or master_port is not free.
    """
    if not 1 <= nproc <= MOST_RANKS:
        raise config.invalid("-n", nproc, f"1 to {MOST_RANKS}")
    if place is None:
        port = free_ports() if master_port is None else master_port
        if master_port is not None and not (_is_free(port) and _is_free(smdp_port(port))):
            raise config.invalid("--master-port", port, "a free port whose next port is also free")
        place = Place(0, nproc, "127.0.0.1", port)
    common = dict(environ)
    # Variables of an outer launcher describe its own processes, not these ranks.
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
    if not has_secret and nproc == place.world_size:  # otherwise, rank 0 generates and distributes one
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
    """Returns Open MPI's rank variables, which scripts for SMDDP read because its launcher uses mpirun.

    Variables that would make MPI libraries look for mpirun itself (PMIX_*, OMPI_MCA_*) are left out.
    """
    numbers = {"RANK": rank, "SIZE": world_size, "LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size}
    return {f"OMPI_COMM_WORLD_{name}": number for name, number in numbers.items()}


def free_ports() -> int:
    """Returns a free port whose next port is also free.

    The port is below the range that the kernel uses for outgoing connections, so that no connection takes it
    before rank 0 does.
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
