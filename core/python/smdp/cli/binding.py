"""CPU affinity of the ranks on a machine: `smdp run --bind-to`."""

from __future__ import annotations

import os
from collections import defaultdict
from enum import Enum
from pathlib import Path

from smdp import config
from smdp._kernel_files import read_text


class BindTo(str, Enum):
    """The unit that a rank is bound to."""

    NONE = "none"  # the kernel decides where a rank runs
    CORE = "core"  # each rank gets an equal number of neighboring cores
    NUMA = "numa"  # each rank gets whole NUMA nodes, or shares one with neighboring ranks


def cpus_of_ranks(
    bind_to: BindTo,
    nproc: int,
    allowed: set[int] | None = None,
    system: Path = Path("/sys/devices/system"),
) -> list[set[int]] | None:
    """Divides CPUs among local ranks in order, so that neighboring ranks get neighboring CPUs.

    Args:
        bind_to: The unit that is not split: cores with all their hardware threads, or NUMA nodes. If there
            are more ranks than nodes, several ranks share a node.
        nproc: Number of local ranks.
        allowed: CPUs to divide. Default: those of this process.
        system: Directory in which the kernel describes CPUs and nodes; for tests.

    Returns:
        The CPUs of each rank, or None if ranks are not bound.

    Raises:
        ConfigError: There are more ranks than cores.
    """
    if bind_to is BindTo.NONE:
        return None
    allowed = os.sched_getaffinity(0) if allowed is None else allowed
    node_of = _nodes(system)
    parts: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    places = {cpu: (node_of.get(cpu, 0), _core(system, cpu)) for cpu in allowed}
    for cpu, (node, core) in sorted(places.items(), key=lambda one: one[1]):
        parts[node, 0 if bind_to is BindTo.NUMA else core].add(cpu)
    whole = list(parts.values())
    if bind_to is BindTo.CORE and nproc > len(whole):
        raise config.invalid("--bind-to", "core", f"none or numa, for {nproc} ranks on {len(whole)} cores")
    shares = []
    for rank in range(nproc):
        begin, end = rank * len(whole) // nproc, (rank + 1) * len(whole) // nproc
        shares.append(set.union(*whole[begin : max(end, begin + 1)]))
    return shares


def listed(cpus: set[int]) -> str:
    """Returns CPU numbers in the kernel's notation, e.g. 0-3,8."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][-1] + 1 == cpu:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _nodes(system: Path) -> dict[int, int]:
    """Returns the NUMA node of each CPU; empty if the machine has no NUMA nodes."""
    result = {}
    for directory in system.glob("node/node[0-9]*"):
        for run in filter(None, (read_text(directory / "cpulist") or "").split(",")):
            first, _, last = run.partition("-")
            result.update(dict.fromkeys(range(int(first), int(last or first) + 1), int(directory.name[4:])))
    return result


def _core(system: Path, cpu: int) -> int:
    """Returns the first hardware thread of a CPU's core, or the CPU itself if the kernel does not say."""
    topology = system / f"cpu/cpu{cpu}/topology"
    listed = (
        read_text(topology / "core_cpus_list") or read_text(topology / "thread_siblings_list") or str(cpu)
    )
    return int(listed.replace("-", ",").partition(",")[0])
