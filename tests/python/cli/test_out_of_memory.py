"""What `smdp run` says of ranks that the kernel has ended because memory ran out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from smdp import _kernel_files
from smdp.cli.out_of_memory import OutOfMemory

LIMIT = 192 << 20


@pytest.mark.parametrize(
    ("membership", "file", "limit"),
    [
        ("0::/job", "job/memory.events", "job/memory.max"),
        ("4:memory:/job\n0::/", "memory/job/memory.oom_control", "memory/memory.limit_in_bytes"),
    ],
)
def test_what_is_counted(membership: str, file: str, limit: str) -> None:
    counter = f"/sys/fs/cgroup/{file}"
    files = {"/proc/self/cgroup": membership, f"/sys/fs/cgroup/{limit}": str(3 << 30)}
    files[counter] = "low 0\noom 7\noom_kill 2"
    with mock.patch.object(_kernel_files, "read_text", lambda path: files.get(str(path))):
        watched = OutOfMemory()
        assert watched.explained(is_killed=False) == ""
        files[counter] = "low 0\noom 7\noom_kill 3"
        told = watched.explained(is_killed=False)
        assert "ended a process here because memory ran out: the limit of its cgroup is 3 GiB" in told
        assert f"(/sys/fs/cgroup/{limit})" in told
        assert watched.explained(is_killed=False) == ""


def test_a_machine_without_a_limit() -> None:
    files = {"/proc/vmstat": "oom_kill 1", "/proc/meminfo": "MemTotal: 1048576 kB"}
    with mock.patch.object(_kernel_files, "read_text", lambda path: files.get(str(path))):
        watched = OutOfMemory()
        files["/proc/vmstat"] = "oom_kill 3"
        # They may be anybody's.
        assert watched.explained(is_killed=False) == ""
        told = watched.explained(is_killed=True)
    assert "ended 2 processes on this machine because memory ran out: the machine has 1 GiB" in told


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup with a limit of memory."""
    for outer in _kernel_files.cgroup_directories("memory"):
        inner = outer / f"smdp-test-{os.getpid()}"
        try:
            inner.mkdir()
        except OSError:
            continue
        try:
            name = "memory.max" if (inner / "memory.max").exists() else "memory.limit_in_bytes"
            (inner / name).write_text(str(LIMIT))
            if (inner / "memory.swap.max").exists():
                (inner / "memory.swap.max").write_text("0")
            yield inner
            return
        except OSError:
            continue
        finally:
            inner.rmdir()
    pytest.skip("no cgroup with a limit of memory can be made here")


@pytest.mark.timeout(120)
def test_a_rank_that_the_kernel_ends(cgroup: Path, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        f"import os, time\nif os.environ['RANK'] == '1':\n    held = b'x' * {2 * LIMIT}\ntime.sleep(60)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "smdp", "run", "-n", "2", str(script)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: (cgroup / "cgroup.procs").write_text(str(os.getpid())),
    )
    assert done.returncode == 137, done.stderr
    assert "failed first: killed by SIGKILL; stopping 1 other rank" in done.stderr
    assert "ended a process here because memory ran out: the limit of its cgroup is 192 MiB" in done.stderr
