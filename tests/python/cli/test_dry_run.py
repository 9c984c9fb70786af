"""`smdp run --dry-run` says what ranks would see, which is what they see, and starts nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(100)


def smdp_run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "smdp", "run", *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**os.environ, **more},
    )


def shown(output: str, title: str) -> dict[str, str]:
    """The variables below a title."""
    block = output.partition(f"\n{title}\n")[2].partition("\n\n")[0]
    return dict(re.findall(r"^  (\w+)=(.*)$", block, re.MULTILINE))


def test_it_says_what_the_ranks_then_see(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\nfor name in sorted(os.environ): print(f'{name}={os.environ[name]}')\n")
    arguments = ("-n", "2", "--compat", "--master-port", "23411")
    dry = smdp_run(*arguments, "--dry-run", str(script), "--epochs", "3", GROUP_RANK="4", SMDP_SECRET="")
    assert dry.returncode == 0, dry.stderr
    first = f"would start 2 ranks of: {sys.executable} -u {script} --epochs 3"
    assert dry.stdout.splitlines()[0] == first
    common = shown(dry.stdout, "every rank gets")
    assert (
        common["SMDP_SECRET"] == "***" and common["SMDP_COMPAT"] == "1" and common["MASTER_PORT"] == "23411"
    )
    assert "removed for every rank: GROUP_RANK\n" in dry.stdout

    real = smdp_run(*arguments, str(script), GROUP_RANK="4", SMDP_SECRET="")
    assert real.returncode == 0, real.stderr
    for rank in range(2):
        said = {**common, **shown(dry.stdout, f"rank {rank} gets")}
        assert said["RANK"] == said["SMDP_LOCAL_RANK"] == str(rank)
        lines = set(re.findall(rf"^\[rank {rank}\] (.*)$", real.stdout, re.MULTILINE))
        missing = {f"{name}={value}" for name, value in said.items() if value != "***"} - lines
        assert missing == set()
        text = f"smdp.init() detects rank {rank} of 2, local rank {rank} of 2, rank 0 at 127.0.0.1:23412"
        assert text in dry.stdout


def test_nothing_is_started(tmp_path: Path) -> None:
    done = smdp_run("--dry-run", "-n", "2", "--", "touch", str(tmp_path / "started"))
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "started").exists()


def test_what_is_around_is_explained() -> None:
    around = {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "1"}
    done = smdp_run("--dry-run", "--", "true", **around)
    assert "would start 1 rank of: true\n" in done.stdout
    assert "  using SMDP_* variables: rank 0 of 1" in done.stdout
    assert "  not using SLURM, which has lower precedence than SMDP_* variables: rank 0 of 1" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "more", "code", "message"),
    [
        (("no-such-file.py",), {}, 127, "no such file"),
        (("-n", "0", "true"), {}, 2, "-n='0' is not valid; allowed: 1 to 65536"),
        (("-n", "70000", "true"), {}, 2, "-n='70000' is not valid; allowed: 1 to 65536"),
        (("true",), {"SMDP_TIMEOUT": "soon"}, 2, "smdp.init() fails: SMDP_TIMEOUT='soon'"),
    ],
)
def test_wrong_input(arguments: tuple[str, ...], more: dict[str, str], code: int, message: str) -> None:
    done = smdp_run("--dry-run", *arguments, **more)
    assert done.returncode == code
    assert message in done.stdout + done.stderr


def test_bytes_in_variables_of_others_are_not_ours_to_refuse() -> None:
    command = [sys.executable, "-m", "smdp", "run", "--dry-run", "true"]
    environ = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    done = subprocess.run(command, capture_output=True, env={**environ, b"SM_HOSTS": b"a\xff"}, timeout=90)
    assert (done.returncode, done.stderr) == (0, b"")
