"""Lightning on smdp: by the backend's name, and with the gradient reducer."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy
from loss_scales import told_factors
from transformers_spawn import run

import smdp
from smdp.lightning import SmdpStrategy
from smdp.torch import DistributedDataParallel

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "lightning_text.py"
SMDP_RUN = ["-m", "smdp", "run", "-n", "2"]


def data() -> torch.utils.data.TensorDataset:
    random = np.random.default_rng(0)
    x = torch.tensor(random.normal(size=(160, 8)), dtype=torch.float32)
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


class Regression(lightning.LightningModule):
    """With a parameter that is never used."""

    def __init__(self, is_automatic: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization = is_automatic
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.unused = torch.nn.Parameter(torch.ones(3))
        self.losses: list[float] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        total = loss.detach().clone()
        if dist.is_initialized():
            dist.all_reduce(total)
            total /= dist.get_world_size()
        self.losses.append(total.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.05)


def fitted(strategy: Any, module: Regression, **options: Any) -> tuple[Any, list[Any]]:
    size = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=size,
        strategy=strategy if size > 1 else "auto",
        max_steps=20,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=os.environ["SMDP_TEST_FOLDER"],
        **options,
    )
    order = torch.utils.data.DistributedSampler(data(), size, int(os.environ.get("RANK", "0")), shuffle=False)
    trainer.fit(module, torch.utils.data.DataLoader(data(), 8 // size, sampler=order))
    if size > 1:
        assert dist.get_backend() == "smdp"
    bits = b"".join(parameter.detach().numpy().tobytes() for parameter in module.parameters())
    return trainer, [module.losses, hashlib.sha256(bits).hexdigest()]


def by_name() -> Any:
    strategy = DDPStrategy(process_group_backend="smdp", find_unused_parameters=True)
    return fitted(strategy, Regression())[1]


def automatic() -> Any:
    trainer, result = fitted("smdp", Regression())
    if dist.is_initialized():
        assert isinstance(trainer.strategy, SmdpStrategy)
    return result


def by_hand() -> Any:
    return fitted(SmdpStrategy(bucket_cap_mb=1), Regression(is_automatic=False))[1]


def accumulated() -> Any:
    """Gradients travel once per step of the optimizer, not once per batch."""
    options = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
    trainer, result = fitted(SmdpStrategy(), Regression(), **options)
    assert trainer.global_step == 20 and len(result[0]) == 40
    assert smdp.stats()["steps"] == (20 if dist.is_initialized() else 0)
    return result


def normalized() -> Any:
    """Batch norm over the global batch; the model has its own layers back afterwards."""
    module = Regression()
    norm = torch.nn.BatchNorm1d(16)
    module.layers.insert(1, norm)
    is_alone = os.environ.get("WORLD_SIZE", "1") == "1"
    _, result = fitted("smdp", module, sync_batchnorm=not is_alone)
    assert module.layers[1] is norm
    assert norm.running_var is not None
    result[0].append(float(norm.running_var.mean()))
    return result


WAYS = [by_name, automatic, by_hand, accumulated, normalized]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_equals_one_process(way: Any) -> None:
    ((alone, _),) = run(way, 1)
    (first, bits), (_, other_bits) = run(way, 2)
    assert bits == other_bits
    assert first[19] < first[0] / 2
    assert first == pytest.approx(alone, abs=1e-5)


class Explained(Regression):
    """Remembers what its reducer was made with: after fit() it is gone."""

    def on_train_end(self) -> None:
        self.words = self.trainer.strategy.model.explain()


def wrapped() -> Any:
    """The gradient reducer is at work with its options, and a checkpoint goes on where it was."""
    module = Explained()
    trainer, _ = fitted(SmdpStrategy(compression="int8", bucket_cap_mb=0.5), module)
    assert "on 2 hosts; compression between hosts: int8." in module.words, module.words
    assert "limit 0.52 MB" in module.words, module.words
    assert smdp.stats()["steps"] == 20
    folder = os.path.join(os.environ["SMDP_TEST_FOLDER"], "half.ckpt")
    trainer.save_checkpoint(folder)
    again = Explained.load_from_checkpoint(folder)
    return torch.equal(again.layers[0].weight, trainer.lightning_module.layers[0].weight)


def test_checkpoint() -> None:
    assert run(wrapped, 2, hosts=[0, 1]) == [True, True]


def scaled() -> Any:
    """On CPUs a loss scaler must be given."""
    told = told_factors()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5)
    fitted(
        SmdpStrategy(compression="int8"), Regression(), plugins=[MixedPrecision("16-mixed", "cpu", scaler)]
    )
    return told


def test_follows_a_loss_scaler() -> None:
    assert run(scaled, 2) == [[2.0] * 4] * 2


def too_few_devices() -> None:
    trainer = lightning.Trainer(accelerator="cpu", devices=1, strategy="smdp", logger=False)
    with pytest.raises(ValueError, match=r"2 ranks were started .* num_nodes=1 times devices=1\."):
        trainer.fit(Regression(), torch.utils.data.DataLoader(data(), 8))


def of_other_options() -> None:
    is_last = os.environ["RANK"] == "1"
    told = "the options on rank 1 are compression bf16, .*; on rank 0: compression none, "
    with pytest.raises(smdp.MismatchError, match=told):
        fitted(SmdpStrategy(compression="bf16" if is_last else "none"), Regression())


def test_refusals() -> None:
    run(too_few_devices, 2)
    run(of_other_options, 2)
    with pytest.raises(ValueError, match="process_group_backend is 'gloo'; it must be 'smdp'"):
        SmdpStrategy(process_group_backend="gloo")
    with pytest.raises(ValueError, match="SmdpStrategy: compression is 'zip'; allowed: none, fp16"):
        SmdpStrategy(compression="zip")
    with pytest.raises(ValueError, match="SmdpStrategy: topk_ratio is 7; it must be a number above 0 and"):
        SmdpStrategy(compression="topk", topk_ratio=7)
    with pytest.raises(TypeError, match=r"for DistributedDataParallel: got an unexpected .*'compresion'"):
        DistributedDataParallel(torch.nn.Linear(2, 2), compresion="bf16")
    with pytest.raises(TypeError, match=r"support the argument compresion=.bf16.\. Supported are"):
        SmdpStrategy(compresion="bf16")
    with pytest.raises(ValueError, match=r"does not support ddp_comm_hook\. Use compression="):
        SmdpStrategy(ddp_comm_hook=print)


LINE = """
import os
import lightning
import torch

class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""

BY_NAME_ALONE = """
import sys
from lightning.pytorch.strategies import DDPStrategy

assert not [name for name in sys.modules if name.split(".")[0] == "smdp"]
strategy = DDPStrategy(process_group_backend="smdp")
silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
quiet = dict.fromkeys(silent, False)
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=1, **quiet)
lightning.seed_everything(trainer.global_rank)
model = Line()
trainer.fit(model, torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=4))
assert "smdp.lightning" not in sys.modules
weights = model.layer.weight.tolist()
words = ["trained", trainer.world_size, torch.distributed.get_backend(), trainer.global_step, weights]
os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # in one piece: both ranks write to one pipe
"""


def started(launcher: list[str], *words: str) -> str:
    return run_command([sys.executable, *launcher, *words])


def run_command(words: list[str]) -> str:
    done = subprocess.run(
        words,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert "trains alone" not in done.stderr
    return done.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "launcher", [pytest.param(SMDP_RUN, marks=pytest.mark.slow), []], ids=["smdp run", "Lightning"]
)
def test_by_name_alone(launcher: list[str], tmp_path: Path) -> None:
    """Nobody imports smdp."""
    script = tmp_path / "by_name.py"
    script.write_text(LINE + BY_NAME_ALONE)
    first, second = re.findall(r"trained 2 smdp 2 (.+)", started(launcher, str(script)))
    assert first == second


BY_MPIRUN = """
import smdp.lightning
from lightning.pytorch.plugins.environments import MPIEnvironment

MPIEnvironment.detect = staticmethod(lambda: False)  # as without mpi4py
silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
for _ in range(2):
    quiet = dict.fromkeys(silent, False)
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="smdp", max_epochs=1, **quiet)
    model = Line()
    trainer.fit(model, torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=4))
    place = [trainer.global_rank, trainer.local_rank, trainer.node_rank, trainer.world_size]
    # In one piece: the lines of both ranks go to one pipe.
    text = f"trained {trainer.global_step} {model.layer.weight.tolist()} at {place}\\n"
    os.write(1, text.encode())
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_mpirun_without_mpi4py(tmp_path: Path) -> None:
    """One job of two ranks, where Lightning would start another process beside each."""
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not here")
    script = tmp_path / "by_mpirun.py"
    script.write_text(LINE + BY_MPIRUN)
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable, str(script)]
    told = re.findall(r"trained (.+) at (.+)", run_command(mpirun))
    assert sorted(place for _, place in told) == ["[0, 0, 0, 2]"] * 2 + ["[1, 1, 0, 2]"] * 2
    assert len({weights for weights, _ in told}) == 2  # one of each training
    assert all(weights.startswith("2 ") for weights, _ in told)  # steps: each rank has half of the rows


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("launcher", [SMDP_RUN, []], ids=["smdp run", "Lightning"])
def test_example(launcher: list[str]) -> None:
    pytest.importorskip("transformers", "5")
    told = started(launcher, str(EXAMPLE), "--steps", "5")
    assert float(re.findall(r"perplexity ([\d.]+)", told)[0]) < 80  # 256 before training
