"""The `smdp run` command and its options."""

from __future__ import annotations

from typing import Annotated

import typer

from smdp.cli.binding import BindTo


def run_command(
    command: Annotated[
        list[str],
        typer.Argument(help="A Python file, a module (with -m) or a program, followed by its arguments."),
    ],
    nproc: Annotated[
        int,
        typer.Option("-n", "--nproc-per-node", "--nproc_per_node", "-np", help="Number of ranks to start."),
    ] = 1,
    module: Annotated[
        bool, typer.Option("-m", "--module", help="Run COMMAND as a module, like python -m.")
    ] = False,
    master_port: Annotated[
        int | None,
        typer.Option(
            "--master-port",
            "--master_port",
            min=1,
            max=65534,
            help="Port of torch's store; smdp's store uses the next port. Default: two free ports.",
        ),
    ] = None,
    stop_timeout: Annotated[
        float,
        typer.Option("--stop-timeout", min=0.0, help="Seconds between SIGTERM and SIGKILL after a failure."),
    ] = 5.0,
    grace: Annotated[
        float,
        typer.Option("--grace", min=0.0, help="Seconds that ranks have to save and exit after SIGTERM."),
    ] = 120.0,
    compat: Annotated[
        bool,
        typer.Option(
            "--compat", help="Run scripts written for Amazon's SMDDP and SMP, or for Horovod, with smdp."
        ),
    ] = False,
    bind_to: Annotated[
        BindTo,
        typer.Option(
            "--bind-to",
            help="Bind each rank to an equal share of the cores, or of the NUMA nodes.",
        ),
    ] = BindTo.NONE,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the command and variables of every rank, and start nothing."),
    ] = False,
    nnodes: Annotated[str | None, typer.Option("--nnodes", "--hosts", "-H", hidden=True)] = None,
) -> None:
    """Start ranks on this machine, and stop them all if one fails.

    Exits with the code of the rank that failed first.
    """
    from smdp.cli import run

    if nnodes not in (None, "1"):
        typer.echo(
            f"smdp run: got {nnodes} for --nnodes or --hosts, but smdp run starts ranks on this machine"
            " only. To use several machines, start the script with torchrun --nnodes, mpirun or srun; smdp"
            " reads their variables.",
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
