"""Compares ranks that a framework passes with those of the launcher that started this process.

Lightning, Accelerate and other libraries detect launchers themselves. If they read the variables of an outer
launcher, such as a SLURM batch shell around `smdp run`, every process gets the same rank.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Mapping

from smdp import _log, config
from smdp._errors import ConfigError
from smdp.environments import detect, find
from smdp.environments.base import Launch
from smdp.environments.single import SingleProcess
from smdp.environments.torch_port import smdp_port

_TORCH = ("RANK", "WORLD_SIZE")
_logger = logging.getLogger("smdp.environments")


def contradicted(rank: int, world_size: int, environ: Mapping[str, str] = os.environ) -> Launch | None:
    """Returns the launcher's ranks if they contradict a given rank and world size.

    A different world size is not a contradiction: the world may consist of processes that a rank has started,
    or of some of the ranks. The exception is a world of one, in which every rank would train alone.

    Args:
        rank: The given rank.
        world_size: The given number of ranks.
        environ: The environment variables.

    Returns:
        The launcher's ranks; None if they agree, if no launcher started this process as one of several, or if
        this process is a multiprocessing child of a rank.
    """
    if multiprocessing.parent_process() is not None or find(environ) is SingleProcess:
        return None
    # `smdp run` removes this variable, so it comes from a torchrun that was started inside it.
    if config.read(environ, "TORCHELASTIC_RUN_ID") and (str(rank), str(world_size)) == tuple(
        config.read(environ, name) for name in _TORCH
    ):
        return None
    try:
        launch = detect(environ, needs_master=False)
    except ConfigError:  # the given ranks are used anyway
        return None
    if launch.world_size == 1 or world_size not in (1, launch.world_size):
        return None
    return None if (rank, world_size) == (launch.rank, launch.world_size) else launch


def check_given_ranks(
    rank: int, world_size: int, given: str, environ: Mapping[str, str] = os.environ
) -> None:
    """Compares a given rank and world size with the launcher's, before the ranks meet at MASTER_PORT.

    A rank other than 0 may be intended: a program may number its ranks differently from the launcher, and
    duplicate ranks are detected when the ranks meet. Rank 0 must be the launcher's, because several processes
    that act as rank 0 would each wait for the others.

    Args:
        rank: The given rank.
        world_size: The given number of ranks.
        given: Where they come from, for the message.
        environ: The environment variables.

    Raises:
        smdp.ConfigError: They contradict each other, and this process would be rank 0 or train alone.
    """
    launch = contradicted(rank, world_size, environ)
    if launch is None or (rank != 0 and world_size != 1) or _has_own_place(world_size, environ):
        return
    raise ConfigError(f"[smdp] {_both(rank, world_size, given, launch)}")


def _has_own_place(world_size: int, environ: Mapping[str, str]) -> bool:
    """Returns whether the program, rather than the launcher, has set MASTER_PORT."""
    port, of_smdp = (config.read(environ, name) for name in ("MASTER_PORT", "SMDP_MASTER_PORT"))
    if port is None:
        return False
    if of_smdp is not None:  # `smdp run` sets both
        return not port.isdecimal() or str(smdp_port(int(port))) != of_smdp
    # torchrun sets MASTER_PORT. Under other launchers, Lightning sets it, even with wrong ranks.
    return world_size == 1 and not config.read(environ, "TORCHELASTIC_RUN_ID")


def warn_of_given_ranks(rank: int, world_size: int, given: str) -> None:
    """Logs a warning about a given rank and world size that contradict the launcher's."""
    launch = contradicted(rank, world_size)
    if launch is not None:
        _log.follow()
        _logger.warning("[smdp] %s", _both(rank, world_size, given, launch))


def _both(rank: int, world_size: int, given: str, launch: Launch) -> str:
    return (
        f"this process is rank {rank} of {world_size} according to {given}, and rank {launch.rank} of"
        f" {launch.world_size} according to {launch.source}. A library that detects launchers itself may"
        " have read the variables of a different launcher. With Lightning, use strategy='smdp' or"
        " plugins=[smdp.lightning.LaunchedEnvironment()]. If the first rank is correct, set"
        f" SMDP_RANK={rank} and SMDP_WORLD_SIZE={world_size}."
    )
