"""What every launcher's class has in common."""

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
"""What a world size may be: with more, somebody has slipped, and nobody should wait for the rest."""
# In hints; rank 0 knows better and fills in its own.
PLACEHOLDER = "<address of rank 0's host>"


@dataclass(frozen=True)
class Ranks:
    """Four numbers that a launcher gives, checked against each other.

    Attributes:
        rank: 0 to world_size - 1.
        world_size: Number of processes.
        local_rank: Rank among the processes on this host, None if the launcher does not say.
        local_size: Number of processes on this host, None if the launcher does not say.
    """

    rank: int
    world_size: int
    local_rank: int | None
    local_size: int | None

    @property
    def is_one_host(self) -> bool:
        """True if the launcher put all ranks on this host."""
        return self.world_size == 1 or self.local_size == self.world_size


@dataclass(frozen=True)
class Launch(Ranks):
    """This process's place in its job.

    Attributes:
        master_addr: Where rank 0 is reached; empty if nobody said.
        master_port: Port of rank 0's store; 0 for any free one (a world of one process only).
        source: Who said so, e.g. "torchrun".
        job: What the launcher calls the job, the same on all its ranks; empty if it has no name for it.
    """

    master_addr: str
    master_port: int
    source: str
    job: str = field(default="", compare=False)


class Environment(ABC):
    """A launcher, recognised by the variables it sets.

    Attributes:
        name: What messages call it.
        variables: What it sets and `smdp env` shows.
        master_hint: What to do if the address of rank 0 is not known.
    """

    name: ClassVar[str]
    variables: ClassVar[tuple[str, ...]]
    master_hint: ClassVar[str] = f"set SMDP_MASTER_ADDR={PLACEHOLDER} on every rank"

    @classmethod
    @abstractmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Tell whether this launcher started the process."""

    @classmethod
    def why_not(cls, environ: Mapping[str, str]) -> str:
        """Say why detect() is false although variables of this launcher are there; empty if none are."""
        there = [name for name in cls.variables if config.read(environ, name)]
        return f"{', '.join(there)} alone tell{'' if len(there) > 1 else 's'} no rank" if there else ""

    @classmethod
    @abstractmethod
    def launch(cls, environ: Mapping[str, str]) -> Launch:
        """Read the launcher's variables.

        Raises:
            ConfigError: They are incomplete or contradict each other.
        """

    @classmethod
    def cost(cls, environ: Mapping[str, str]) -> str:
        """Say what is lost, and how to get it, if the job runs as launch() says; empty if nothing is."""
        return ""


def read_ranks(
    environ: Mapping[str, str],
    rank: str,
    world_size: str,
    local_rank: str | None = None,
    local_size: str | None = None,
) -> Ranks:
    """Read the four numbers from the variables of these names and check them.

    Raises:
        ConfigError: One is missing, no number, or does not fit the others.
    """
    rank_value = config.read_int(environ, rank)
    size_value = config.read_int(environ, world_size, minimum=1, maximum=MOST_RANKS)
    if rank_value is None or size_value is None:
        missing, there = (rank, world_size) if rank_value is None else (world_size, rank)
        value = f"{there}={environ.get(there, '')!r} is set and " if config.read(environ, there) else ""
        raise ConfigError(f"{value}{missing} is not set; allowed: both {rank} and {world_size}, or neither")
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
    """Add the master to ranks: SMDP_MASTER_*, then MASTER_*, then what the launcher knows.

    MASTER_PORT belongs to torch's store, which may run beside ours: smdp takes the port after it.

    Args:
        environ: The variables.
        ranks: The four numbers.
        source: Name of the launcher.
        master_addr: The launcher's own idea of where rank 0 is; on one host it is not needed.
        job: What names the job and is the same on all ranks, empty if nothing does; ranks of
            another job are refused.
        seed: What the port is drawn from, if not from job: the same on all ranks where it matters.
    """
    addr = config.read(environ, "SMDP_MASTER_ADDR") or config.read(environ, "MASTER_ADDR")
    if addr is None:
        addr = LOOPBACK if ranks.is_one_host else master_addr
    port = read_master_port(environ)
    if port is None:
        port = 0 if ranks.world_size == 1 else port_for(job or seed)
    return Launch(ranks.rank, ranks.world_size, ranks.local_rank, ranks.local_size, addr, port, source, job)


def read_master_port(environ: Mapping[str, str]) -> int | None:
    """Give SMDP_MASTER_PORT, else MASTER_PORT + 1, else None.

    Raises:
        ConfigError: It is no port.
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
            "1 to 65534, since smdp takes MASTER_PORT + 1 (or set SMDP_MASTER_PORT)",
        )
    return smdp_port(torch_port)


def port_for(job: str) -> int:
    """Draw a port from the job's name: above Linux's ephemeral ports, where nobody gets one by chance."""
    return 61000 + zlib.crc32(job.encode()) % 4000
