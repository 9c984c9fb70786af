"""Lightning's own look for launchers, beside smdp's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import lightning
import pytest
from lightning.pytorch.strategies import DDPStrategy

from smdp.environments import Launch
from smdp.lightning import LaunchedEnvironment

pytestmark = pytest.mark.timeout(300)

SMDP_RUN = [sys.executable, "-m", "smdp", "run", "-n", "2"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable]
# As the shell of a batch file has them, and all that is started there.
BATCH_SHELL = {
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NAME": "train",
    "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_NNODES": "1",
    "SLURM_NODELIST": "localhost",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}

TRAINING = """
import os
import lightning
import torch
from lightning.fabric.strategies import DDPStrategy as FabricStrategy
from lightning.pytorch.strategies import DDPStrategy
from smdp import environments
from smdp.lightning import LaunchedEnvironment

class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

rank = environments.detect().rank
silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
quiet = dict.fromkeys(silent, False)
options = dict(accelerator="cpu", devices=2)
trainer = lightning.Trainer(strategy="smdp", max_epochs=1, **options, **quiet)
trainer.fit(Line(), torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=4))
by_name = lightning.Trainer(
    strategy=DDPStrategy(process_group_backend="smdp"), plugins=[LaunchedEnvironment()], **options, **quiet
)
fabric = lightning.Fabric(
    strategy=FabricStrategy(process_group_backend="smdp"), plugins=[LaunchedEnvironment()], **options
)
ranks = [one.global_rank for one in (trainer, by_name, fabric)]
os.write(1, f"rank {rank} has {ranks} of {trainer.world_size}, steps {trainer.global_step}\\n".encode())
"""

BY_NAME = """
import lightning
from lightning.pytorch.strategies import DDPStrategy

strategy = DDPStrategy(process_group_backend="smdp")
lightning.Trainer(accelerator="cpu", devices=2, strategy=strategy, logger=False).strategy.setup_environment()
"""


def started(folder: Path, launcher: list[str], script: str) -> subprocess.CompletedProcess[str]:
    file = folder / "job.py"
    file.write_text(script)
    environ = {**os.environ, **BATCH_SHELL, "SMDP_INIT_TIMEOUT": "60"}
    return subprocess.run([*launcher, str(file)], env=environ, capture_output=True, text=True, timeout=280)


@pytest.mark.parametrize(
    "launcher", [SMDP_RUN, pytest.param(MPIRUN, marks=pytest.mark.slow)], ids=["smdp run", "mpirun"]
)
def test_a_launcher_in_a_batch_shell_of_slurm(launcher: list[str], tmp_path: Path) -> None:
    if shutil.which(launcher[0]) is None:
        pytest.skip(f"{launcher[0]} is not here")
    done = started(tmp_path, launcher, TRAINING)
    told = re.findall(r"rank \d has .*", done.stdout)
    assert sorted(told) == [
        "rank 0 has [0, 0, 0] of 2, steps 2",
        "rank 1 has [1, 1, 1] of 2, steps 2",
    ], done.stderr


@pytest.mark.slow
def test_by_name_the_error_names_both_launchers(tmp_path: Path) -> None:
    done = started(tmp_path, SMDP_RUN, BY_NAME)
    assert done.returncode == 1
    message = (
        "this process is rank 0 of 2 according to init_process_group() with rank=0, world_size=2, and rank 1"
        " of 2 according to SMDP_* variables."
    )
    assert message in done.stderr, done.stderr


def test_more_devices_than_ranks_are_an_error() -> None:
    alone = Launch(0, 1, 0, 1, "127.0.0.1", 0, "single process")
    strategy = DDPStrategy(process_group_backend="smdp")
    environment = LaunchedEnvironment(alone)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, plugins=[environment], logger=False
    )
    told = r"1 rank was started \(single process\), but the Trainer has num_nodes=1 times devices=2\."
    with pytest.raises(ValueError, match=told):
        trainer.strategy.launcher.launch(lambda: None)
