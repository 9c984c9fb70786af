"""The `smdp env` command and its options."""

from __future__ import annotations

from typing import Annotated

import typer


def env_command(
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Print only problems that keep smdp from working; exit with 1 if there are any."
        ),
    ] = False,
) -> None:
    """Describe this machine and installation, for bug reports. Secrets are masked."""
    from smdp.cli import env

    if check:
        failures = env.failures()
        for failure in failures:
            typer.echo(f"[smdp] {failure}", err=True)
        raise typer.Exit(1 if failures else 0)
    typer.echo(env.report(as_json=json))
