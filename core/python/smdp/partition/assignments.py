"""Formats a partition as text, similar to the log of SageMaker's model parallel library."""

from __future__ import annotations

from collections.abc import Sequence

from smdp._core import Partition, PartitionStage
from smdp.partition.trace import ELEMENT_BYTES, Trace

_MIB = 2**20


def assignments(trace: Trace, partition: Partition) -> str:
    """Returns a line per stage, the predicted step time, and the reason for the partition."""
    lines = ["Partition assignments:", *stage_lines(trace, partition)]
    if partition.step > 0:
        lines.append(f"predicted step {partition.step * 1e3:.4g} ms, bubble {partition.bubble:.1%}")
    lines.append(partition.reason)
    return "\n".join(lines)


def stage_lines(trace: Trace, partition: Partition) -> list[str]:
    """Returns a line per stage with its rank, modules, time and sizes."""
    return [_line(trace, index, stage) for index, stage in enumerate(partition.stages)]


def _line(trace: Trace, index: int, stage: PartitionStage) -> str:
    return (
        f"stage {index} on rank {stage.rank}: {_names(trace, stage.units)},"
        f" {stage.seconds * 1e3:.4g} ms, parameters {stage.parameter_bytes / _MIB:.1f} MiB"
        f" ({stage.parameter_bytes / ELEMENT_BYTES[trace.parameter_dtype] / 1e6:.4g} million),"
        f" memory {stage.memory_bytes / _MIB:.1f} MiB, sends {stage.cut_bytes / _MIB:.2f} MiB"
    )


def _names(trace: Trace, units: Sequence[int]) -> str:
    """Returns the units' names; of consecutive units, only the first and the last."""
    if not units:
        return "nothing"
    runs: list[list[int]] = []
    for unit in units:
        if runs and runs[-1][-1] + 1 == unit:
            runs[-1].append(unit)
        else:
            runs.append([unit])
    return ", ".join(
        trace.units[run[0]].name + (f" to {trace.units[run[-1]].name}" if len(run) > 1 else "")
        for run in runs
    )
