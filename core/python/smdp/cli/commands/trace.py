"""The `smdp trace merge` and `smdp trace report` commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

trace_commands = typer.Typer(help="Read the traces that SMDP_TRACE=DIR writes.", no_args_is_help=True)
_Directory = Annotated[Path, typer.Argument(help="The directory that SMDP_TRACE named.")]


@trace_commands.command("merge")
def _merge(
    directory: _Directory,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write. Default: DIRECTORY/merged.json.")
    ] = None,
) -> None:
    """Merge the traces of all ranks into one timeline for ui.perfetto.dev or chrome://tracing.

    Clocks of different hosts are aligned.
    """
    from smdp.cli import trace

    if output is not None and output.suffix != ".json":
        typer.echo(
            f"smdp trace: --output = {str(output)!r} is not valid; allowed: file names ending in .json",
            err=True,
        )
        raise typer.Exit(2)
    try:
        written = trace.merge(directory, output)
    except (ValueError, OSError) as error:
        typer.echo(f"smdp trace: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"wrote {written}; open it at ui.perfetto.dev")


@trace_commands.command("report")
def _report(
    directory: _Directory,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report where the time of training steps went: input data, communication, or a slow rank."""
    from smdp.cli import trace

    try:
        text = trace.report_text(directory, as_json=json)
    except (ValueError, OSError) as error:
        typer.echo(f"smdp trace: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(text)
