"""The commands `smdp trace merge` and `smdp trace report`: their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

trace_commands = typer.Typer(help="Read the traces that SMDP_TRACE=dir makes.", no_args_is_help=True)
_Directory = Annotated[Path, typer.Argument(help="What SMDP_TRACE named.")]


@trace_commands.command("merge")
def _merge(
    directory: _Directory,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Default: DIR/merged.json.")] = None,
) -> None:
    """Put all ranks on one timeline, clocks aligned, for ui.perfetto.dev or chrome://tracing."""
    from smdp.cli import trace

    if output is not None and output.suffix != ".json":
        typer.echo(
            f"smdp trace: --output = {str(output)!r} is not valid; allowed: names ending in .json", err=True
        )
        raise typer.Exit(2)
    try:
        written = trace.merge(directory, output)
    except (ValueError, OSError) as error:
        typer.echo(f"smdp trace: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"wrote {written}; open it in ui.perfetto.dev")


@trace_commands.command("report")
def _report(
    directory: _Directory,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say where the steps' time went: input data, communication, or one slow rank."""
    from smdp.cli import trace

    try:
        text = trace.report_text(directory, as_json=json)
    except (ValueError, OSError) as error:
        typer.echo(f"smdp trace: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(text)
