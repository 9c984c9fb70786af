"""The base class of all launchers, and helpers to read and check their variables."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from smdp import config
from smdp._errors import ConfigError
from smdp.environments.torch_port import smdp_port

LOOPBACK = "127.0.0.1"
MOST_RANKS = 2**16
"""The largest world size. A larger one must be a mistake, and is an error instead of a wait for ranks."""
# Used in hints; rank 0 replaces it with its own host name.
PLACEHOLDER = "<address of rank 0's host>"


@dataclass(frozen=True)
class Ranks:
    """The ranks and sizes that a launcher provides, checked against each other.

    Attributes:
        rank: 0 to world_size - 1.
        world_size: Number of processes.
        local_rank: Rank among the processes on this host; None if the launcher does not provide it.
        local_size: Number of processes on this host; None if the launcher does not provide it.
    """

    rank: int
    world_size: int
    local_rank: int | None
    local_size: int | None

    @property
    def is_one_host(self) -> bool:
        """Whether all ranks are on this host."""
        return self.world_size == 1 or self.local_size == self.world_size


@dataclass(frozen=True)
class Launch(Ranks):
    """This process's place in its job.

    Attributes:
        master_addr: Address at which rank 0 can be reached; empty if unknown.
        master_port: Port of rank 0's store; 0 for any free port (in a world of one process only).
        source: Where the ranks come from, e.g. "torchrun".
        job: The launcher's name for the job, which is the same on all ranks; empty if it has none.
    """

    master_addr: str
    master_port: int
    source: str
    job: str = field(default="", compare=False)


class Environment(ABC):
    """A launcher, detected by the environment variables it sets.

    Attributes:
        name: Its name in messages.
        variables: The variables it sets, which `smdp env` shows.
        master_hint: What to do if the address of rank 0 is unknown.
    """

    name: ClassVar[str]
    variables: ClassVar[tuple[str, ...]]
    master_hint: ClassVar[str] = f"set SMDP_MASTER_ADDR={PLACEHOLDER} on every rank"

    @classmethod
    @abstractmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Returns whether this launcher started the process."""

    @classmethod
    def why_not(cls, environ: Mapping[str, str]) -> str:
        """Returns why detect() is False although variables of the launcher are set; empty if none are."""
        there = [name for name in cls.variables if config.read(environ, name)]
        return (
            f"{', '.join(there)} alone do{'' if len(there) > 1 else 'es'} not define a rank" if there else ""
        )

    @classmethod
    @abstractmethod
    def launch(cls, environ: Mapping[str, str]) -> Launch:
        """Returns this process's place in its job, from the launcher's variables.

        Raises:
            ConfigError: The variables are incomplete or contradict each other.
        """

    @classmethod
    def cost(cls, environ: Mapping[str, str]) -> str:
        """Returns a warning if the job as started leaves resources unused, with the fix; otherwise empty."""
        return ""


def read_ranks(
    environ: Mapping[str, str],
    rank: str,
    world_size: str,
    local_rank: str | None = None,
    local_size: str | None = None,
) -> Ranks:
    """Reads ranks and sizes from the variables with these names, and checks them.

    Raises:
        ConfigError: A variable is missing, is not a number, or contradicts the others.
    """
    rank_value = config.read_int(environ, rank)
    size_value = config.read_int(environ, world_size, minimum=1, maximum=MOST_RANKS)
    if rank_value is None or size_value is None:
        missing, there = (rank, world_size) if rank_value is None else (world_size, rank)
        value = f"{there}={environ.get(there, '')!r} is set but " if config.read(environ, there) else ""
        raise ConfigError(f"{value}{missing} is not set; set both {rank} and {world_size}, or neither")
    if rank_value >= size_value:
        raise config.invalid(rank, rank_value, f"0 to {size_value - 1}, since {world_size}={size_value}")
    local_rank_value = config.read_int(environ, local_rank) if local_rank else None
    local_size_value = config.read_int(environ, local_size, minimum=1) if local_size else None
    if local_size is not None and local_size_value is not None and local_size_value > size_value:
        raise config.invalid(
            local_size, local_size_value, f"1 to {size_value}, since {world_size}={size_value}"
        )
    if local_rank is not None and local_rank_value is not None:
        limit, whose = size_value, world_size
        if local_size is not None and local_size_value is not None:
            limit, whose = local_size_value, local_size
        if local_rank_value >= limit:
            raise config.invalid(local_rank, local_rank_value, f"0 to {limit - 1}, since {whose}={limit}")
    return Ranks(rank_value, size_value, local_rank_value, local_size_value)


def make_launch(
    environ: Mapping[str, str],
    ranks: Ranks,
    source: str,
    *,
    master_addr: str = "",
    job: str = "",
    seed: str = "",
) -> Launch:
    """Returns a Launch with the master's address, from SMDP_MASTER_*, MASTER_*, or the launcher.

    MASTER_PORT belongs to torch's store, which may run beside smdp's, so smdp uses the port after it.

    Args:
        environ: The environment variables.
        ranks: The ranks and sizes.
        source: Name of the launcher.
        master_addr: Address of rank 0 according to the launcher; not needed on one host.
        job: Name of the job, the same on all ranks; empty if there is none. Ranks of a different job are
            rejected.
        seed: Text from which the port is derived if `job` is empty; the same on all ranks.
    """
    addr = config.read(environ, "SMDP_MASTER_ADDR") or config.read(environ, "MASTER_ADDR")
    if addr is None:
        addr = LOOPBACK if ranks.is_one_host else master_addr
    port = read_master_port(environ)
    if port is None:
        port = 0 if ranks.world_size == 1 else port_for(job or seed)
    return Launch(ranks.rank, ranks.world_size, ranks.local_rank, ranks.local_size, addr, port, source, job)


def read_master_port(environ: Mapping[str, str]) -> int | None:
    """Returns SMDP_MASTER_PORT; if it is unset, MASTER_PORT + 1; or None if both are unset.

    Raises:
        ConfigError: The value is not a port number.
    """
    port = config.read_port(environ, "SMDP_MASTER_PORT")
    if port is not None:
        return port
    torch_port = config.read_port(environ, "MASTER_PORT")
    if torch_port is None:
        return None
    if torch_port == 65535:
        raise config.invalid(
            "MASTER_PORT",
            torch_port,
            "1 to 65534, since smdp uses MASTER_PORT + 1 (or set SMDP_MASTER_PORT)",
        )
    return smdp_port(torch_port)


def port_for(job: str) -> int:
    """Returns a port derived from the job's name, above the range of Linux's ephemeral ports."""
    return 61000 + zlib.crc32(job.encode()) % 4000
