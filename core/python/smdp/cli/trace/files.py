"""Reads the files that SMDP_TRACE writes: one event per line, of which the last may be cut off."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smdp._shown import counted

Event = dict[str, Any]

# The last event of a file that has reached its size limit, and of a complete file.
_FULL = "trace is full"
_END = "trace ends"
# Fields that reports need; events without them are ignored.
_SPAN = {"name", "cat", "ts", "dur", "args"}


@dataclass
class Trace:
    """The trace of one rank. Times are microseconds of that machine's clock.

    Attributes:
        rank: The rank.
        size: Number of ranks in the job.
        clock: Identifies the clock; ranks on one machine share it.
        names: Metadata events, such as process names.
        spans: Events with a duration.
        ends: The event that marks a full file; empty if the file was not full.
        is_cut: Whether events at the end are missing.
    """

    rank: int
    size: int
    clock: str
    names: list[Event] = field(default_factory=list)
    spans: list[Event] = field(default_factory=list)
    ends: list[Event] = field(default_factory=list)
    is_cut: bool = False


def read(directory: Path) -> list[Trace]:
    """Reads the traces of all ranks, in rank order; for a restarted job, the newest trace of each rank.

    Warnings about missing, full and truncated traces go to stderr.

    Raises:
        ValueError: There are no traces, they belong to jobs of different sizes, or one is damaged.
    """
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"{directory} is not a directory; pass the directory that SMDP_TRACE named")
    newest: dict[int, Trace] = {}
    empty: list[int] = []
    paths = sorted(directory.glob("rank*-*.json"), key=lambda path: path.stat().st_mtime)
    for path in paths:
        trace = _read_file(path)
        if trace is not None:
            newest[trace.rank] = trace
        elif (number := path.name.removeprefix("rank").partition("-")[0]).isdecimal():
            empty.append(int(number))
    if not newest and paths:
        raise ValueError(
            f"{paths[-1]} is not a trace of smdp, or is damaged: its first event is missing. The disk may"
            " have been full."
        )
    if not newest:
        raise ValueError(f"no traces in {directory}; run the job with SMDP_TRACE={directory}")
    sizes = {trace.size for trace in newest.values()}
    if len(sizes) > 1:
        raise ValueError(
            f"{directory} contains traces of jobs with different numbers of ranks, {sorted(sizes)}; use an"
            " empty directory for each job"
        )
    (size,) = sizes
    if missing := [rank for rank in range(size) if rank not in newest and rank not in empty]:
        print(
            f"smdp: {directory} contains traces of {len(newest)} of {counted(size, 'rank')}; missing:"
            f" {missing[:8]}{', ...' if len(missing) > 8 else ''}. If these ranks ran on other hosts, copy"
            " their files here.",
            file=sys.stderr,
        )
    if full := [rank for rank in sorted(newest) if newest[rank].ends]:
        limit = newest[full[0]].ends[0].get("args", {}).get("limit_bytes", 0)
        print(
            f"smdp: the traces of ranks {full[:8]}{', ...' if len(full) > 8 else ''} reached the limit of"
            f" {limit / 2**20:.4g} MiB; later events were not recorded. Trace fewer steps.",
            file=sys.stderr,
        )
    if cut := [rank for rank in sorted({*newest, *empty}) if rank not in newest or newest[rank].is_cut]:
        counts = {rank: _steps_of(newest[rank]) for rank in newest}
        most = max(counts.values())
        steps = f": that of rank {cut[0]} has {counted(counts.get(cut[0], 0), 'step')}, others up to {most}"
        print(
            f"smdp: the traces of ranks {cut[:8]}{', ...' if len(cut) > 8 else ''} end early"
            f"{steps if most else ''}."
            " Their last events are missing: the disk was full, the ranks were killed, or they are still"
            " running.",
            file=sys.stderr,
        )
    return [newest[rank] for rank in sorted(newest)]


def _steps_of(trace: Trace) -> int:
    # A step has several such events if training waits for gradients one by one.
    return len(
        {
            (event["args"].get("group"), event["args"].get("step"))
            for event in trace.spans
            if event["cat"] == "step" and event["name"] == "exposed communication"
        }
    )


def _read_file(path: Path) -> Trace | None:
    trace: Trace | None = None
    names: list[Event] = []
    spans: list[Event] = []
    ends: list[Event] = []
    is_whole = False
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                event = json.loads(line.rstrip().rstrip(","))
            except ValueError:  # the opening bracket, or a line that was cut off
                is_whole = False
                continue
            if not isinstance(event, dict):
                continue
            is_whole = event.get("ph") == "i" and event.get("name") in (_END, _FULL)
            if event.get("name") == "smdp":
                try:
                    values = event["args"]
                    trace = Trace(values["rank"], values["size"], values["clock"], names, spans, ends)
                    if type(trace.rank) is not int or type(trace.size) is not int:
                        raise TypeError
                except (KeyError, TypeError):
                    raise ValueError(
                        f"{path} is damaged: its first event lacks a valid rank, size or clock"
                    ) from None
            elif event.get("ph") == "M":
                names.append(event)
            elif event.get("ph") == "i" and event.get("name") == _FULL and "ts" in event:
                ends.append(event)
            elif event.keys() >= _SPAN:
                spans.append(event)
    if trace is not None:
        trace.is_cut = not is_whole
    return trace
