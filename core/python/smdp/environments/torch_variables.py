"""Sets torch's own variables under launchers that do not set them."""

from __future__ import annotations

import os

from smdp.environments import detect, find
from smdp.environments.choice import note_own_variables
from smdp.environments.single import SingleProcess
from smdp.environments.torch_port import torch_port


def set_torch_variables() -> bool:
    """Sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT from the launcher.

    Variables that are already set keep their values. As a result, `init_process_group` works under mpirun and
    srun as it does under torchrun.

    Returns:
        Whether a launcher started this process; otherwise nothing is set.

    Raises:
        smdp.ConfigError: The launcher's variables are incomplete.
    """
    if find() is SingleProcess:
        return False
    launch = detect()
    known = {
        "RANK": launch.rank,
        "WORLD_SIZE": launch.world_size,
        "LOCAL_RANK": launch.local_rank if launch.local_rank is not None else 0,
        "LOCAL_WORLD_SIZE": launch.local_size if launch.local_size is not None else 1,
        "MASTER_ADDR": launch.master_addr,
        "MASTER_PORT": torch_port(launch.master_port),
    }
    for name, value in known.items():
        os.environ.setdefault(name, str(value))
    note_own_variables()
    return True
