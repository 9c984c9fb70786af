"""`smdp run --bind-to`: CPUs of each rank, on machines that are described by files and on this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from smdp._errors import ConfigError
from smdp.cli.binding import BindTo, cpus_of_ranks, listed

pytestmark = pytest.mark.timeout(60)


def machine(root: Path, nodes: int, cores: int, threads: int) -> Path:
    """Describe a machine as the kernel does; the second threads of all cores follow the first ones of all."""
    total = nodes * cores
    for cpu in range(total * threads):
        core = cpu % total
        topology = root / f"cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        siblings = ",".join(str(core + total * thread) for thread in range(threads))
        (topology / ("core_cpus_list" if core % 2 else "thread_siblings_list")).write_text(f"{siblings}\n")
    for node in range(nodes):
        directory = root / f"node/node{node}"
        directory.mkdir(parents=True)
        runs = [
            f"{thread * total + node * cores}-{thread * total + (node + 1) * cores - 1}"
            for thread in range(threads)
        ]
        (directory / "cpulist").write_text(",".join(runs) + "\n")
    return root


@pytest.mark.parametrize(
    ("bind_to", "nproc", "expected"),
    [
        (BindTo.CORE, 1, ["0-15"]),
        (BindTo.CORE, 2, ["0-3,8-11", "4-7,12-15"]),
        (BindTo.CORE, 3, ["0-1,8-9", "2-4,10-12", "5-7,13-15"]),
        (BindTo.CORE, 8, [f"{core},{core + 8}" for core in range(8)]),
        (BindTo.NUMA, 1, ["0-15"]),
        (BindTo.NUMA, 2, ["0-3,8-11", "4-7,12-15"]),
        (BindTo.NUMA, 3, ["0-3,8-11", "0-3,8-11", "4-7,12-15"]),
        (BindTo.NUMA, 20, ["0-3,8-11"] * 10 + ["4-7,12-15"] * 10),
    ],
)
def test_two_nodes_of_four_cores_with_two_threads(
    bind_to: BindTo, nproc: int, expected: list[str], tmp_path: Path
) -> None:
    shares = cpus_of_ranks(bind_to, nproc, set(range(16)), machine(tmp_path, 2, 4, 2))
    assert shares is not None
    assert [listed(share) for share in shares] == expected


def test_only_what_this_process_may_use_is_divided(tmp_path: Path) -> None:
    system = machine(tmp_path, 2, 4, 2)
    allowed = {1, 2, 9, 5}  # two threads of one core, one of two others
    assert cpus_of_ranks(BindTo.CORE, 3, allowed, system) == [{1, 9}, {2}, {5}]
    assert cpus_of_ranks(BindTo.NUMA, 2, {1, 2, 9}, system) == [{1, 2, 9}] * 2
    with pytest.raises(ConfigError, match=r"--bind-to='core' .* 4 ranks on 3 cores"):
        cpus_of_ranks(BindTo.CORE, 4, allowed, system)


def test_a_kernel_that_says_nothing_of_cores_and_nodes(tmp_path: Path) -> None:
    assert cpus_of_ranks(BindTo.CORE, 2, {0, 1, 2, 3}, tmp_path) == [{0, 1}, {2, 3}]
    assert cpus_of_ranks(BindTo.NUMA, 2, {0, 1}, tmp_path) == [{0, 1}, {0, 1}]
    assert cpus_of_ranks(BindTo.NONE, 2, {0, 1}, tmp_path) is None


def smdp_run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "smdp", "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


def test_ranks_run_where_they_are_bound() -> None:
    cores = cpus_of_ranks(BindTo.CORE, 1)
    assert cores == [os.sched_getaffinity(0)]
    script = ("--", sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))")
    alone = smdp_run("--bind-to", "core", *script)
    assert alone.stdout == f"[rank 0] {sorted(os.sched_getaffinity(0))}\n", alone.stderr
    try:
        expected = cpus_of_ranks(BindTo.CORE, 2)
    except ConfigError:
        pytest.skip("this machine has one core")
    assert expected is not None
    assert not expected[0] & expected[1]
    done = smdp_run("-n", "2", "--bind-to", "core", *script)
    lines = [f"[rank {rank}] {sorted(cpus)}" for rank, cpus in enumerate(expected)]
    assert sorted(done.stdout.splitlines()) == lines, done.stderr
    dry = smdp_run("-n", "2", "--bind-to", "core", "--dry-run", "true")
    for cpus in expected:
        assert f"  CPUs {listed(cpus)}\n" in dry.stdout


def test_more_ranks_than_cores() -> None:
    done = smdp_run("-n", "4096", "--bind-to", "core", "true")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "--bind-to='core' is not valid; allowed: none or numa, for 4096 ranks on " in done.stderr
