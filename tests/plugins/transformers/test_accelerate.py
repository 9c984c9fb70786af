"""Accelerate with the backend "smdp", by name."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import language_model as lm
import pytest
import torch
from transformers_spawn import run

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "accelerate_text.py"


def loop() -> Any:
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs

    accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="smdp")])
    if accelerator.num_processes > 1:
        assert lm.is_over_smdp() and accelerator.state.backend == "smdp"
    model = lm.model()
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        torch.utils.data.DataLoader(lm.rows(80), 8 // accelerator.num_processes),
    )
    losses = []
    for rows in loader:
        loss = model(**rows).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    return [losses, lm.weights_hash(accelerator.unwrap_model(model)), accelerator.num_processes]


def test_loop_equals_one_process() -> None:
    ((alone, _, one),) = run(loop, 1)
    (first, weights, two), (_, other_weights, _) = run(loop, 2)
    assert (one, two) == (1, 2)
    assert weights == other_weights
    assert first == pytest.approx(alone, abs=1e-5)


def over_gloo_already() -> Any:
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs

    torch.distributed.init_process_group("gloo")
    with pytest.raises(ValueError, match=r"backend=\"smdp\", but the existing process group uses 'gloo'"):
        Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="smdp")])


def by_address() -> Any:
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs

    address = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
    named = InitProcessGroupKwargs(backend="smdp", init_method=address)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[named])
    ranks = accelerator.gather(torch.tensor([accelerator.process_index]))
    return [lm.is_over_smdp(), ranks.tolist()]


def after_a_state_without_it() -> Any:
    from accelerate import Accelerator, PartialState
    from accelerate.utils import InitProcessGroupKwargs

    PartialState(cpu=True)
    with pytest.raises(ValueError, match=r"was created without it and has the backend 'gloo', so each rank"):
        Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend="smdp")])


def after_a_group_over_it() -> Any:
    """What Accelerate calls gloo is the group that is there, of whatever backend."""
    from accelerate import Accelerator, PartialState
    from accelerate.state import AcceleratorState
    from accelerate.utils import InitProcessGroupKwargs

    torch.distributed.init_process_group("smdp")
    named = [InitProcessGroupKwargs(backend="smdp")]
    for first in (PartialState, Accelerator):
        assert first(cpu=True).num_processes == 2
        assert PartialState().backend == "gloo"
        accelerator = Accelerator(cpu=True, kwargs_handlers=named)
        assert accelerator.state.backend == PartialState().backend == "smdp"
        ranks = accelerator.gather(torch.tensor([accelerator.process_index]))
        assert ranks.tolist() == [0, 1] and lm.is_over_smdp()
        AcceleratorState._reset_state(reset_partial_state=True)
    # Without cpu=True it sees one process, wherever there is no GPU.
    if not torch.cuda.is_available():
        assert PartialState().num_processes == 1
        with pytest.raises(ValueError, match=r"was created without it and has the backend None, so each"):
            Accelerator(kwargs_handlers=named)


def test_groups_of_other_kinds() -> None:
    run(over_gloo_already, 2)
    run(after_a_state_without_it, 2)
    run(after_a_group_over_it, 2)
    assert run(by_address, 2) == [[True, [0, 1]]] * 2


def taken_back() -> Any:
    """After uninstall() Accelerate is as it was, and says what it says."""
    from accelerate import PartialState

    import smdp.accelerate

    smdp.accelerate.uninstall()
    plain = PartialState.__init__
    smdp.accelerate.install()
    own = PartialState.__init__
    assert own is not plain
    smdp.accelerate.uninstall()
    assert PartialState.__init__ is plain

    # What somebody else puts over it stays.
    smdp.accelerate.install()
    own = PartialState.__init__

    @functools.wraps(own)
    def theirs(*args: Any, **kwargs: Any) -> None:
        own(*args, **kwargs)

    PartialState.__init__ = theirs
    smdp.accelerate.uninstall()
    assert PartialState.__init__ is theirs
    # And what is below it does nothing any more.
    with pytest.raises(ValueError, match="Your assigned backend smdp is not available"):
        PartialState(cpu=True, backend="smdp")
    PartialState._reset_state()
    PartialState.__init__ = plain
    with pytest.raises(ValueError, match="Your assigned backend smdp is not available"):
        PartialState(cpu=True, backend="smdp")
    PartialState._reset_state()
    smdp.accelerate.install()
    return PartialState(cpu=True, backend="smdp").num_processes


def test_uninstall() -> None:
    assert run(taken_back, 2) == [2, 2]


def started(command: list[str], **variables: str) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


BY_NAME = """
import sys
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
assert "smdp.accelerate" not in sys.modules
try:
    accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="smdp")])
    print(accelerator.state.backend, accelerator.num_processes)
except ValueError as error:
    print(error)
"""


def test_by_name_alone(tmp_path: Path) -> None:
    script = tmp_path / "by_name.py"
    script.write_text(BY_NAME)
    command = [sys.executable, "-m", "smdp", "run", "-n", "2", str(script)]
    assert started(command).count("smdp 2") == 2
    refused = started(command, SMDP_DISABLE_AUTOLOAD="1")
    assert refused.count("Your assigned backend smdp is not available") == 2


TOO_OLD = """
import accelerate, transformers
accelerate.__version__ = "1.11.0"
try:
    transformers.TrainingArguments("out", ddp_backend="smdp", use_cpu=True, report_to=[])
except ImportError as error:
    print(error)
"""


def test_named_without_what_it_needs() -> None:
    """One line with the cure, before there is a Trainer."""
    needed = "[smdp] smdp.accelerate requires Accelerate 1.15 or newer, but 1.11.0 is installed"
    assert started([sys.executable, "-c", TOO_OLD]) == f'{needed}: pip install "smdp[transformers]"\n'


AT_EXIT = """
import atexit
import accelerate, transformers
classes = accelerate.PartialState, transformers.Trainer, transformers.Seq2SeqTrainer
before = [one.__init__ for one in classes]
atexit.register(lambda: print("as before:", [one.__init__ for one in classes] == before))
import smdp.transformers
assert all(one.__init__ is not plain for one, plain in zip(classes, before))
"""


def test_undone_at_exit() -> None:
    assert "as before: True" in started([sys.executable, "-c", AT_EXIT])


def test_example() -> None:
    told = started([sys.executable, "-m", "smdp", "run", "-n", "2", str(EXAMPLE), "--steps", "10"])
    (loss,) = re.findall(r"step 10: loss ([\d.]+)", told)
    (perplexity,) = re.findall(r"perplexity ([\d.]+)", told)
    assert float(loss) < 4 and float(perplexity) < 40


needs_mpirun = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="accelerate launches CPUs by mpirun, which is not here"
)


def launched(folder: Path, *script: str) -> str:
    hosts = folder / "hosts"
    hosts.write_text("localhost slots=2\n")
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_machines", "1"]
    launcher += ["--num_processes", "2", "--mpirun_hostfile", str(hosts), *script]
    return started(launcher, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")


LAUNCHED = """
import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from smdp.torch.process_group.process_group import ProcessGroupSmdp

accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="smdp")])
assert accelerator.num_processes == 2 and accelerator.state.backend == "smdp"
assert isinstance(torch.distributed.group.WORLD, ProcessGroupSmdp)
torch.manual_seed(accelerator.process_index)
model = torch.nn.Linear(1, 1, bias=False)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 1.0))
before = model.module.weight.item()
accelerator.backward(model(torch.tensor([[1.0 + accelerator.process_index]])).sum())
optimizer.step()
assert before - model.module.weight.item() == 1.5, "not the mean of both ranks"
weights = accelerator.gather(model.module.weight.detach())
assert weights[0] == weights[1]
print(f"rank {accelerator.process_index} is right\\n", end="", flush=True)
"""


@needs_mpirun
def test_accelerate_launch(tmp_path: Path) -> None:
    script = tmp_path / "launched.py"
    script.write_text(LAUNCHED)
    told = launched(tmp_path, str(script))
    assert sorted(re.findall(r"rank \d is right", told)) == ["rank 0 is right", "rank 1 is right"]


BY_ACCELERATE = """
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs

accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="smdp")])
print("processes", accelerator.num_processes)
"""
BY_A_PLUGIN = """
import tempfile
import torch
from smdp.transformers import DataParallel, Trainer, TrainingArguments

args = TrainingArguments(tempfile.mkdtemp(), report_to=[])
trainer = Trainer(torch.nn.Linear(1, 1), args, plugins=[DataParallel()])
print("processes", trainer.args.world_size)
"""


@pytest.mark.parametrize(
    "script",
    [BY_ACCELERATE, pytest.param(BY_A_PLUGIN, marks=pytest.mark.slow)],
    ids=["Accelerate", "a plugin"],
)
def test_accelerate_launch_without_a_host_file_is_warned_of(script: str, tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(script)
    launcher = ["-m", "accelerate.commands.launch", "--cpu", "--num_machines", "1", "--num_processes", "2"]
    done = subprocess.run(
        [sys.executable, *launcher, str(tmp_path / "alone.py")], capture_output=True, text=True, timeout=110
    )
    assert "processes 1" in done.stdout, done.stderr
    told = (
        "[smdp] no launcher has started this process, so it trains alone: on CPUs, accelerate launch starts"
    )
    assert done.stderr.count(told) == 1, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)  # two trainings
@needs_mpirun
def test_example_by_accelerate_launch(tmp_path: Path) -> None:
    by_mpirun = launched(tmp_path, str(EXAMPLE), "--steps", "10")
    by_smdp = started([sys.executable, "-m", "smdp", "run", "-n", "2", str(EXAMPLE), "--steps", "10"])
    alone = started([sys.executable, str(EXAMPLE), "--steps", "10"])
    (line,) = [line for line in by_mpirun.splitlines() if "perplexity" in line]
    assert line in by_smdp
    assert "perplexity" in alone
