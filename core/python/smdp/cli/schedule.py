"""`smdp schedule`: pipeline schedules, listed, drawn and measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from smdp import pipeline

#: What --output can write, by the name's ending.
FORMATS = (".csv", ".json", ".png", ".svg", ".pdf")


class Shown(NamedTuple):
    """What `smdp schedule show` prints."""

    text: str
    problem: str | None  # why the picture was not drawn


def names(incomplete: str = "") -> list[str]:
    """Returns the names of the schedules that begin with what was typed."""
    return [name for name in pipeline.SCHEDULES if name.startswith(incomplete)]


def listing() -> str:
    """Returns a line for each schedule: its name, and what it is."""
    width = max(map(len, pipeline.SCHEDULES))
    return "\n".join(f"{name:<{width}}  {line}" for name, line in pipeline.SCHEDULES.items())


def show(
    name: str,
    *,
    stages: int,
    microbatches: int,
    virtual_stages: int | None,
    active_microbatches: int | None,
    forward: float,
    backward_input: float,
    backward_weight: float,
    hop: float,
    memory_cap: float | None,
    width: int,
    as_json: bool,
    output: Path | None,
    trace: Path | None,
) -> Shown:
    """Makes a schedule, verifies it, lowered, and returns its drawing and figures.

    Args:
        name: One of smdp.pipeline.SCHEDULES.
        stages: Pipeline stages.
        microbatches: Number of microbatches.
        virtual_stages: Per rank. Default: what the schedule needs.
        active_microbatches: For smp_interleaved: most under way. Default: stages + 2.
        forward: Time of a full stage; virtual stages share it, the two below and one unit of activations.
        backward_input: Of its input gradient.
        backward_weight: Of its weight gradient.
        hop: From rank to rank.
        memory_cap: For auto: most activations per rank, in those of a microbatch on a full stage.
        width: Most characters of a line.
        as_json: Give figures as JSON, without a drawing.
        output: Also write the schedule (.csv, .json) or a picture (.png, .svg, .pdf).
        trace: Also write a Chrome trace.

    Raises:
        ValueError: An argument is wrong.
        OSError: A file cannot be written.
    """
    if output is not None and output.suffix not in FORMATS:
        raise ValueError(
            f"--output = {str(output)!r} is not valid; allowed: names ending in {', '.join(FORMATS)}"
        )
    virtual = virtual_stages if virtual_stages is not None else pipeline.usual_virtual_stages(name)
    part = 1 / max(1, virtual)
    times: dict[str, Any] = {
        "forward": forward * part,
        "backward_input": backward_input * part,
        "backward_weight": backward_weight * part,
        "hop": hop,
        "activation_bytes": part,
    }
    schedule = pipeline.generate(
        name,
        stages=stages,
        microbatches=microbatches,
        virtual_stages=virtual,
        active_microbatches=active_microbatches,
        memory_cap=memory_cap,
        **times,
    )
    pipeline.verify(schedule.lower())
    result = pipeline.simulate(schedule, **times)
    drawing = result.draw(width=width)  # before anything is written: the width may be wrong
    if trace is not None:
        trace.write_text(result.chrome_trace(), encoding="utf-8")
    problem = None
    if output is not None:
        if output.suffix == ".csv":
            output.write_text(schedule.to_csv(), encoding="utf-8")
        elif output.suffix == ".json":
            output.write_text(schedule.to_json(), encoding="utf-8")
        else:
            try:
                result.draw(output)
            except ImportError as error:
                problem = str(error)
    figures = {
        "schedule": schedule.name,
        "stages": stages,
        "virtual_stages": virtual,
        "microbatches": microbatches,
        "makespan": result.makespan,
        "span": result.span,
        "bubble": result.bubble,
        "peak_activations": result.peak_activations,
    }
    if as_json:
        return Shown(json.dumps(figures, indent=2), problem)
    return Shown(
        f"{drawing}"
        f"{schedule.name}: makespan {result.makespan:g}, bubble {100 * result.bubble:.1f} %, at most "
        f"{max(result.peak_activations):g} microbatches' activations on a rank\n"
        "digit: forward of that microbatch, letter: its backward, ':': weight gradient, '*': both overlapped",
        problem,
    )
