"""The `smdp schedule list` and `smdp schedule show` commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

schedule_commands = typer.Typer(help="List, draw and simulate pipeline schedules.", no_args_is_help=True)


def _schedule_names(incomplete: str) -> list[str]:
    from smdp.cli import schedule

    return schedule.names(incomplete)


@schedule_commands.command("list")
def _list_schedules() -> None:
    """List the schedules with a short description of each."""
    from smdp.cli import schedule

    typer.echo(schedule.listing())


@schedule_commands.command("show")
def _show_schedule(
    name: Annotated[
        str,
        typer.Argument(
            help="A name from smdp schedule list, such as 1f1b, zb_v or auto.", autocompletion=_schedule_names
        ),
    ],
    stages: Annotated[int, typer.Option("--stages", help="Pipeline stages, one per rank.")] = 4,
    microbatches: Annotated[int, typer.Option("--microbatches", help="Number of microbatches.")] = 8,
    virtual_stages: Annotated[
        int | None,
        typer.Option("--virtual-stages", help="Virtual stages per rank. Default: depends on the schedule."),
    ] = None,
    active_microbatches: Annotated[
        int | None,
        typer.Option(
            "--active-microbatches",
            help="smp_interleaved: maximum number of microbatches in flight. Default: stages + 2.",
        ),
    ] = None,
    forward: Annotated[float, typer.Option("--forward", help="Time of a full stage's forward.")] = 1,
    backward_input: Annotated[
        float, typer.Option("--backward-input", help="Time of a full stage's input gradient.")
    ] = 1,
    backward_weight: Annotated[
        float, typer.Option("--backward-weight", help="Time of a full stage's weight gradient.")
    ] = 1,
    hop: Annotated[float, typer.Option("--hop", help="Time of a transfer between ranks.")] = 0,
    memory_cap: Annotated[
        float | None,
        typer.Option(
            "--memory-cap", help="auto: maximum number of microbatches whose activations a rank keeps."
        ),
    ] = None,
    width: Annotated[int, typer.Option("--width", help="Maximum characters per line.")] = 120,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, without the drawing.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Also write a .csv or .json file, or a picture: .png, .svg, .pdf (requires smdp[plots]).",
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Also write a Chrome trace to this file.")
    ] = None,
) -> None:
    """Draw a schedule and print its makespan, bubble and memory."""
    from smdp.cli import schedule

    try:
        shown = schedule.show(
            name,
            stages=stages,
            microbatches=microbatches,
            virtual_stages=virtual_stages,
            active_microbatches=active_microbatches,
            forward=forward,
            backward_input=backward_input,
            backward_weight=backward_weight,
            hop=hop,
            memory_cap=memory_cap,
            width=width,
            as_json=json,
            output=output,
            trace=trace,
        )
    except (ValueError, TypeError, OSError) as error:
        typer.echo(f"smdp schedule: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(shown.text)
    if shown.problem is not None:
        typer.echo(f"smdp schedule: {shown.problem}", err=True)
        raise typer.Exit(2)
