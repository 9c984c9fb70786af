"""The command `smdp run`: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from smdp.cli.binding import BindTo


def run_command(
    command: Annotated[
        list[str], typer.Argument(help="A Python file, a module (with -m) or a program; then its arguments.")
    ],
    nproc: Annotated[
        int,
        typer.Option("-n", "--nproc-per-node", "--nproc_per_node", "-np", help="Number of ranks to start."),
    ] = 1,
    module: Annotated[
        bool, typer.Option("-m", "--module", help="COMMAND is a module, as in python -m.")
    ] = False,
    master_port: Annotated[
        int | None,
        typer.Option(
            "--master-port",
            "--master_port",
            min=1,
            max=65534,
            help="Port of torch's store; smdp's is the next one. Default: two free ones.",
        ),
    ] = None,
    stop_timeout: Annotated[
        float,
        typer.Option("--stop-timeout", min=0.0, help="Seconds between SIGTERM and SIGKILL after a failure."),
    ] = 5.0,
    grace: Annotated[
        float,
        typer.Option("--grace", min=0.0, help="Seconds to save and leave after SIGTERM (spot machines)."),
    ] = 120.0,
    compat: Annotated[
        bool, typer.Option("--compat", help="Let smdp answer for Amazon's SMDDP and for Horovod.")
    ] = False,
    bind_to: Annotated[
        BindTo,
        typer.Option(
            "--bind-to", help="What each rank has for itself: cores, or a NUMA node with its neighbours."
        ),
    ] = BindTo.NONE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what every rank would see, and start nothing.")
    ] = False,
    nnodes: Annotated[str | None, typer.Option("--nnodes", "--hosts", "-H", hidden=True)] = None,
) -> None:
    """Start ranks on this machine, stop all when one fails, exit with the first failure's code."""
    from smdp.cli import run

    if nnodes not in (None, "1"):
        typer.echo(
            f"smdp run: {nnodes} was given for --nnodes or --hosts, but smdp run starts ranks on this machine"
            " only. For several machines start the script with torchrun --nnodes, mpirun or srun; smdp reads"
            " their variables.",
            err=True,
        )
        raise typer.Exit(2)

    raise typer.Exit(
        run.run(
            command,
            nproc,
            module=module,
            master_port=master_port,
            stop_timeout_s=stop_timeout,
            grace_s=grace,
            compat=compat,
            bind_to=bind_to,
            is_dry=dry_run,
        )
    )
