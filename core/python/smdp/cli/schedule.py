"""`smdp schedule`: lists, draws and simulates pipeline schedules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from smdp import pipeline

#: File name extensions that --output supports.
FORMATS = (".csv", ".json", ".png", ".svg", ".pdf")


class Shown(NamedTuple):
    """The output of `smdp schedule show`."""

    text: str
    problem: str | None  # the reason if the picture was not drawn


def names(incomplete: str = "") -> list[str]:
    """Returns the names of the schedules that begin with the given text."""
    return [name for name in pipeline.SCHEDULES if name.startswith(incomplete)]


def listing() -> str:
    """Returns a line for each schedule, with its name and description."""
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
    """Generates a schedule, verifies its lowered form, and returns its drawing and figures.

    Args:
        name: One of smdp.pipeline.SCHEDULES.
        stages: Number of pipeline stages.
        microbatches: Number of microbatches.
        virtual_stages: Virtual stages per rank. Default: the schedule's usual number.
        active_microbatches: For smp_interleaved: the most microbatches in flight. Default: stages + 2.
        forward: Time of a full stage's forward. It is divided among the rank's virtual stages, as are the
            next two times and one unit of activations.
        backward_input: Time of a full stage's input gradient.
        backward_weight: Time of a full stage's weight gradient.
        hop: Time of a transfer between ranks.
        memory_cap: For auto: the most activations per rank, in units of a microbatch on a full stage.
        width: The most characters per line.
        as_json: Whether to return the figures as JSON, without a drawing.
        output: File to write the schedule (.csv, .json) or a picture (.png, .svg, .pdf) to.
        trace: File to write a Chrome trace to.

    Raises:
        ValueError: An argument is invalid.
        OSError: A file cannot be written.
    """
    if output is not None and output.suffix not in FORMATS:
        raise ValueError(
            f"--output = {str(output)!r} is not valid; allowed: file names ending in {', '.join(FORMATS)}"
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
    drawing = result.draw(width=width)  # checks the width before any file is written
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
        "digit: forward of that microbatch, letter: backward, ':': weight gradient, '*': overlapped pair",
        problem,
    )
