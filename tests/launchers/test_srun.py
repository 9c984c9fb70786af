"""srun and sbatch of a real SLURM with one node start the script."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from job import SCRIPT, TIMEOUT_S, TRAIN, clean, results
from slurm import Slurm, why_not

REASON = why_not()
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]

# How the two files are told to start two ranks on one node.
TWO_RANKS = {
    "srun.sbatch": ("--nodes", "1", "--ntasks-per-node", "2"),
    "torchrun.sbatch": ("--nodes", "1", "--export", "ALL,RANKS_PER_NODE=2"),
}
FILES = Path(__file__).parents[2] / "containers" / "slurm"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the files call python and torchrun
    with Slurm(tmp_path_factory.mktemp("slurm"), environ=clean(PATH=programs)) as started:
        yield started


def submit(
    slurm: Slurm, tmp_path: Path, file: Path, *words: str, options: tuple[str, ...] = ()
) -> tuple[int, str]:
    """Run a batch job to its end; give its exit code and all it wrote."""
    output = tmp_path / "output.txt"
    command = ["sbatch", "--wait", "--output", str(output), *options, str(file), *words]
    done = slurm.run(*command, check=False, timeout_s=TIMEOUT_S)
    return done.returncode, output.read_text() if output.exists() else done.stdout


def test_srun(slurm: Slurm, loss: str) -> None:
    done = slurm.run("srun", "-n", "2", *TRAIN, timeout_s=TIMEOUT_S)
    assert results(done.stdout) == [f"ranks=2 {loss}"], done.stdout


def test_srun_with_pmi2_gives_every_task_a_local_rank(slurm: Slurm) -> None:
    """Many sites have MpiDefault=pmi2; its variables know no local ranks."""
    show = (
        "import os; from smdp.environments import detect; launch = detect();"
        "print(os.environ['PMI_RANK'], launch.local_rank, launch.local_size, launch.source)"
    )
    done = slurm.run("srun", "--mpi=pmi2", "-n", "2", sys.executable, "-c", show, timeout_s=TIMEOUT_S)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("srun: ")]
    assert sorted(lines) == ["0 0 2 SLURM", "1 1 2 SLURM"], done.stdout


def test_srun_below_salloc_and_of_a_shell(slurm: Slurm, loss: str) -> None:
    """Both call the step as an interactive shell is called."""
    done = slurm.run("salloc", "-n", "2", "srun", "bash", "-c", " ".join(TRAIN), timeout_s=TIMEOUT_S)
    assert results(done.stdout) == [f"ranks=2 {loss}"], done.stdout


def test_a_batch_file_that_forgot_srun_trains_alone_and_says_so(
    slurm: Slurm, loss: str, tmp_path: Path
) -> None:
    file = tmp_path / "job.sh"
    file.write_text(f"#!/bin/bash\n{' '.join(TRAIN)}\n")
    code, output = submit(slurm, tmp_path, file, options=("--ntasks", "2"))
    assert (code, results(output)) == (0, [f"ranks=1 {loss}"]), output
    assert output.count("trains alone") == 1, output
    assert "SLURM_NTASKS=2 tasks were requested and are idle; start the script with srun" in output


@pytest.mark.parametrize("file", TWO_RANKS)
def test_the_batch_files(slurm: Slurm, loss: str, tmp_path: Path, file: str) -> None:
    code, output = submit(slurm, tmp_path, FILES / file, SCRIPT, options=TWO_RANKS[file])
    assert (code, results(output)) == (0, [f"ranks=2 {loss}"]), output


@pytest.mark.parametrize("file", TWO_RANKS)
def test_the_warning_before_the_end_of_time_reaches_every_rank(
    slurm: Slurm, tmp_path: Path, file: str
) -> None:
    """What --signal=B:SIGTERM sends to the shell of the batch file."""
    script = tmp_path / "obedient.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "def stop(*_):\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"  # the shell's and the launcher's may both come
        '    sys.stdout.write(f\'stopped {os.environ.get("RANK") or os.environ["SLURM_PROCID"]}\\n\')\n'
        "    sys.stdout.flush()\n"
        "    os._exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        f"open({str(tmp_path)!r} + f'/up{{os.getpid()}}', 'w').close()\n"
        "time.sleep(200)\n"
    )
    output = tmp_path / "output.txt"
    done = slurm.run(
        "sbatch", "--parsable", "--output", str(output), *TWO_RANKS[file], str(FILES / file), str(script)
    )
    job = done.stdout.strip()
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("up*"))) < 2:
        assert time.monotonic() < deadline, output.read_text() if output.exists() else slurm.logs()
        time.sleep(0.2)
    slurm.run("scancel", "--batch", "--signal=TERM", job)
    while job in slurm.run("squeue", "-h", "-o", "%i").stdout.split():
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.2)
    written = output.read_text()
    assert written.count("stopped 0") == 1 and written.count("stopped 1") == 1, written


def test_a_rank_that_fails_ends_the_job(slurm: Slurm, tmp_path: Path) -> None:
    """Without --kill-on-bad-exit: the others lose their peer."""
    script = tmp_path / "fails.py"
    script.write_text(
        "import numpy as np, smdp, sys\n"
        "world = smdp.init()\n"
        "if world.rank == 1: sys.exit(7)\n"
        "while True: world.all_reduce(np.ones(3))\n"
    )
    begin = time.monotonic()
    code, output = submit(
        slurm, tmp_path, FILES / "srun.sbatch", str(script), options=TWO_RANKS["srun.sbatch"]
    )
    assert code == 7 and "PeerLostError" in output, output
    assert time.monotonic() - begin < 60


# Rank 1 leaves late, as one does that has more to save.
RESTARTS = """
import os, sys, time
from pathlib import Path
import numpy as np, smdp
world = smdp.init()
folder = Path(sys.argv[1])
state = folder / "step"
first = int(state.read_text()) if state.exists() else 0
print(f"rank {world.rank} begins with {'step 0' if not first else 'what was saved'}", flush=True)
def save():
    if world.rank == 0:
        state.write_text(str(step))
for step in range(first, first + 5 if first else 10**9):
    world.all_reduce(np.ones(3))
    time.sleep(0.05)
    if step == 5:
        (folder / f"up{world.rank}").touch()
    if smdp.preempted():
        save()
        time.sleep(2 * world.rank)
        print(f"rank {world.rank} has saved", flush=True)
        sys.exit(75)
print(f"rank {world.rank} is done", flush=True)
"""


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["told", "cancelled"])
def test_a_job_that_was_told_to_stop_starts_again_and_one_that_was_cancelled_does_not(
    is_cancelled: bool, slurm: Slurm, tmp_path: Path
) -> None:
    script, output = tmp_path / "restarts.py", tmp_path / "output.txt"
    script.write_text(RESTARTS)
    words = ("sbatch", "--parsable", "--output", str(output), *TWO_RANKS["srun.sbatch"])
    done = slurm.run(*words, str(FILES / "srun.sbatch"), str(script), str(tmp_path))
    job = done.stdout.strip()
    deadline = time.monotonic() + 200
    while len(list(tmp_path.glob("up*"))) < 2:
        assert time.monotonic() < deadline, output.read_text() if output.exists() else slurm.logs()
        time.sleep(0.2)
    slurm.run("scancel", *([] if is_cancelled else ["--batch", "--signal=TERM"]), job)
    while job in slurm.run("squeue", "-h", "-o", "%i").stdout.split():
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.2)
    written = output.read_text()
    assert (tmp_path / "step").exists(), written
    for rank in (0, 1):
        assert written.count(f"rank {rank} begins with step 0") == 1, written
        assert written.count(f"rank {rank} has saved") == 1, written
        assert written.count(f"rank {rank} begins with what was saved") == (not is_cancelled), written
        assert written.count(f"rank {rank} is done") == (not is_cancelled), written


def test_two_steps_at_once_draw_ports_of_their_own(slurm: Slurm, loss: str, tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    line = f"srun --overlap -n 2 {sys.executable} {SCRIPT}"
    file.write_text(f"#!/bin/bash\n{line} &\n{line} &\nwait\n")
    code, output = submit(slurm, tmp_path, file, options=("--ntasks", "4"))
    assert (code, results(output)) == (0, [f"ranks=2 {loss}"] * 2), output
