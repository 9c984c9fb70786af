"""Limits of a process: what is used of it, and what is said where it does not do."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from typing import Any

import pytest

Job = Callable[..., Any]


def _seconds(output: str) -> float:
    found = re.search(r"after ([\d.]+) s", output)
    assert found, output
    return float(found[1])


@pytest.mark.parametrize("hosts", [[0, 0, 0], [0, 0, 1]], ids=["one host", "two hosts"])
def test_limit_of_file_sizes_is_named(hosts: list[int], job: Job) -> None:
    code = """
import resource
if int(os.environ["SMDP_RANK"]) == 0:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
report(joined)
"""
    for rank in job(3, code, hosts=hosts):
        assert rank.finish(30) == 0, rank.output
        assert "ulimit -f" in rank.output and _seconds(rank.output) < 3, rank.output


def test_shared_memory_keeps_no_descriptor(job: Job, finish: Callable[..., None]) -> None:
    code = """
g = joined()
g.barrier()
for fd in os.listdir("/proc/self/fd"):
    try:
        target = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # that of the listing itself
        continue
    assert "memfd:smdp" not in target, target
assert (g.all_reduce(np.ones(3)) == 2).all()
"""
    finish(job(2, code))


def test_groups_of_the_same_processes_share_descriptors(job: Job, finish: Callable[..., None]) -> None:
    code = """
def opened():
    return len(os.listdir("/proc/self/fd"))

g = joined()
g.barrier()
before = opened()
kept = [g.split(0) for _ in range(5)]
for one in kept:
    one.barrier()
more = opened() - before
g.barrier()  # who leaves closes connections of the others
assert more == 5 * (2 if g.rank == 0 else 1), more
if g.rank == 0:
    kept[0].send(np.ones(9), 1)
elif g.rank == 1:
    received = np.zeros(9)
    kept[0].recv(received)
    assert received.sum() == 9
"""
    finish(job(3, code))


def test_soft_limit_of_open_files_is_raised(job: Job, finish: Callable[..., None]) -> None:
    code = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))
joined()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, 300)
"""
    finish(job(1, code))


def test_limit_of_threads_is_named(job: Job) -> None:
    code = """
import resource
if os.environ["SMDP_RANK"] == "1":
    sys.exit()
if os.getuid() == 0:  # root has no such limit; whoever takes its place must read its Python
    right = "-all,+dac_read_search"
    options = f"--reuid 61234 --regid 61234 --clear-groups --inh-caps {right} --ambient-caps {right}"
    os.execvp("setpriv", ["setpriv", *options.split(), "--bounding-set", right, sys.executable, *sys.argv])
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
report(joined)
assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()  # Ctrl-C works as before
"""
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root has no limit of threads, and there is no setpriv to be somebody else")
    rank = job(2, code)[0]
    assert rank.finish(30) == 0, rank.output
    assert re.search("SmdpError: .*pthread_create for the thread smdp-store failed.*ulimit -u", rank.output)
    assert _seconds(rank.output) < 3, rank.output
