"""The commands of the pages print what the pages show; `...` in a page stands for anything.

Commands that cost seconds are run, in a folder that has what they name. For others the reason stands below.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pages import DOCS, PAGES, blocks

RUN = re.compile(
    r"smdp (env|plan|simulate|schedule|--version|--help)\b"
    r"|python docs/examples/(will_it_fit|split_a_model)\.py"
)
NOT_RUN = {
    r"(\w+=\S+ )?smdp run ": "jobs: test_pages.py runs the code of pages, plugins' tests the examples",
    r"(cmake|PKG_CONFIG_PATH=\S+ -m smdp.cpp \S+ pkg-config) ": "tests/python/cpp runs them",
    r"smdp bench ": "takes minutes; tests/python/cli/test_bench.py runs it",
    r"smdp trace ": "reads what a job has written; tests/plugins/torch/process_group runs it",
    r"(\w+=\S+ )?(torchrun|mpirun|mpiexec|srun|sbatch|accelerate) ": "launchers: tests/launchers runs them",
    r"(docker|buildah|mmdebstrap|printf|mkdir (keys|base)) ": "container images: tests/containers",
    r"(kubectl|python ray_train.py) ": "clusters: tox -e kubernetes, tox -e ray",
    r"(mkdir -p ml|echo|SAGEMAKER_BASE_DIR)": "a SageMaker container: tests/plugins/sagemaker",
    r"(python3 -m venv|pip|apt|tox|export|git) ": "installs, or sets up the shell",
}
COMMANDS = [block for page in PAGES for block in blocks(page, "console")]


def split(text: str) -> list[tuple[str, str]]:
    """Give each command with what the page shows of its output."""
    found = re.findall(r"(?m)^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", text)
    return [(re.sub(r"\s+# .*", "", command), shown) for command, shown in found]


CHEAP = [
    (block, *each)
    for block in COMMANDS
    if block.reason is None
    for each in split(block.text)
    if RUN.match(each[0])
]


@pytest.mark.parametrize(
    ("block", "command", "shown"), CHEAP, ids=[f"{each[0]}-{each[1][:40]}" for each in CHEAP]
)
def test_command_prints_what_the_page_shows(block: object, command: str, shown: str, tmp_path: Path) -> None:
    if "zb_v.png" in command:
        pytest.importorskip("matplotlib")
    (tmp_path / "docs").symlink_to(DOCS)
    (tmp_path / "config.json").symlink_to(DOCS / "examples" / "configs" / "gpt2_10b.json")
    (tmp_path / "smdp").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m smdp "$@"\n')
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for program in ("smdp", "python"):
        (tmp_path / program).chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    says_nothing_fits = done.returncode == 1 and "Nothing fits" in done.stdout
    assert done.returncode == 0 or says_nothing_fits, done.stderr
    printed = "\n".join(line.rstrip() for line in done.stdout.splitlines()).strip("\n")
    is_shown = doctest.OutputChecker().check_output(shown.strip("\n"), printed, doctest.ELLIPSIS)
    assert not shown.strip() or is_shown, f"{block}: the command prints\n{printed}"


def test_every_other_command_has_a_reason() -> None:
    others = [
        (str(block), command)
        for block in COMMANDS
        for command, _ in split(block.text)
        if not RUN.match(command)
        and not block.reason
        and not any(re.match(rule, command) for rule in NOT_RUN)
    ]
    assert others == []


def test_commands_are_found() -> None:
    assert len(CHEAP) >= 10
    assert split("$ smdp env  # why\n$ smdp plan x \\\n  --hosts 2\nout\n") == [
        ("smdp env", ""),
        ("smdp plan x \\\n  --hosts 2", "out\n"),
    ]
