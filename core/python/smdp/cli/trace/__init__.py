"""`smdp trace`: merges the traces of all ranks into one timeline, and reports where time went."""

from __future__ import annotations

import json
from pathlib import Path

from smdp.cli.trace.alignment import offsets
from smdp.cli.trace.files import Trace, read
from smdp.cli.trace.report import report

__all__ = ["merge", "report_text"]


def merge(directory: Path, output: Path | None = None) -> Path:
    """Writes one trace of all ranks, with aligned clocks, for chrome://tracing or ui.perfetto.dev.

    Args:
        directory: The directory that SMDP_TRACE named.
        output: The file to write. Default: `merged.json` in the directory.

    Returns:
        The path of the file.

    Raises:
        ValueError: The directory has no usable traces.
    """
    traces = read(directory)
    shifts = offsets(traces)
    target = output or directory / "merged.json"
    first = min((event["ts"] + shifts[trace.rank] for trace in traces for event in trace.spans), default=0.0)
    with target.open("w", encoding="utf-8") as file:
        file.write("[\n")
        separator = ""
        for trace in traces:
            for event in trace.names:
                file.write(separator + json.dumps(event))
                separator = ",\n"
            for event in [*trace.spans, *trace.ends]:
                file.write(separator + json.dumps(event | {"ts": event["ts"] + shifts[trace.rank] - first}))
                separator = ",\n"
        file.write("\n]\n")
    return target


def report_text(directory: Path, *, as_json: bool = False) -> str:
    """Returns a report, as text or JSON, on where the time of training steps went.

    Raises:
        ValueError: The directory has no usable traces.
    """
    traces: list[Trace] = read(directory)
    result = report(traces, offsets(traces))
    return json.dumps(result.as_dict(), indent=2) if as_json else result.as_text()
