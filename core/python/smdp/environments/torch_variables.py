"""torch's own variables, for launchers that do not set them."""

from __future__ import annotations

import os
import socket

from smdp.environments import detect, find
from smdp.environments.base import LOOPBACK
from smdp.environments.single import SingleProcess


def set_torch_variables() -> bool:
    """Set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT from the launcher.

    What is set already stays. With them `init_process_group` works under mpirun and srun as under torchrun.
    MASTER_PORT is the port before smdp's own, as under torchrun: both stores may be there side by side.

    Returns:
        Whether a launcher started this process; otherwise nothing is set.

    Raises:
        smdp.ConfigError: The launcher's variables are incomplete.
    """
    if find() is SingleProcess:
        return False
    launch = detect()
    port = launch.master_port - 1 if launch.master_port > 1 else free_port()
    known = {
        "RANK": launch.rank,
        "WORLD_SIZE": launch.world_size,
        "LOCAL_RANK": launch.local_rank if launch.local_rank is not None else 0,
        "LOCAL_WORLD_SIZE": launch.local_size if launch.local_size is not None else 1,
        "MASTER_ADDR": launch.master_addr,
        "MASTER_PORT": port,
    }
    for name, value in known.items():
        os.environ.setdefault(name, str(value))
    return True


def free_port() -> int:
    """Give a port that nobody holds at this moment; for a world of one process only."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
