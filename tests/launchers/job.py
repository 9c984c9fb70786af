"""Start the one training script under a launcher, and read what it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = str(Path(__file__).with_name("train.py"))
TRAIN = [sys.executable, SCRIPT]
TIMEOUT_S = 280  # of a whole job: importing torch takes long on a busy machine

_OTHERS = re.compile(
    r"(SMDP|OMPI|PMI|PMIX|PRTE|MPI|SLURM|HOROVOD|MASTER|TORCHELASTIC|PET|GROUP|ROLE)_"
    r"|(LOCAL_)?RANK$|(LOCAL_)?WORLD_SIZE$"
)


def clean(**more: str) -> dict[str, str]:
    """This process's environment without any launcher's variables, and more."""
    environ = {name: value for name, value in os.environ.items() if not _OTHERS.match(name)}
    return {**environ, "OMP_NUM_THREADS": "1", **more}


def run(command: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    """Run a launcher to its end; standard error is in the output."""
    return subprocess.run(
        command,
        env=clean(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def results(output: str) -> list[str]:
    """The lines of rank 0: one for a whole job, several for several jobs."""
    return re.findall(r"ranks=\d+ loss=\d+\.\d{6}", output)
