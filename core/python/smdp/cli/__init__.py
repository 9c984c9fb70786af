"""The `smdp` command. Code of the subcommands is imported when they run, to keep --help fast."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated

import typer

from smdp.cli.commands.bench import bench_command
from smdp.cli.commands.env import env_command
from smdp.cli.commands.plan import plan_command
from smdp.cli.commands.run import run_command
from smdp.cli.commands.schedule import schedule_commands
from smdp.cli.commands.simulate import simulate_command
from smdp.cli.commands.trace import trace_commands

__all__ = ["app", "main"]

# Errors of a full disk, a quota, a file size limit, and a failing device.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

app = typer.Typer(
    name="smdp",
    help="Distributed training across processes and machines.",
    no_args_is_help=True,
    rich_markup_mode=None,  # rich adds 50 ms to every --help
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib import metadata

        try:
            typer.echo(f"smdp {metadata.version('smdp')}")
        except metadata.PackageNotFoundError:
            typer.echo("smdp (not installed)")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    pass


# In the order in which --help lists them.
app.command("run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})(
    run_command
)
app.command("env")(env_command)
app.command("bench")(bench_command)
app.command("simulate")(simulate_command)
app.add_typer(schedule_commands, name="schedule")
app.command("plan")(plan_command)
app.add_typer(trace_commands, name="trace")


def _open_standard_streams() -> None:
    """Opens standard streams that were closed, as for daemons, so that no pipe gets their descriptors."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def main() -> None:
    """Runs the command line."""
    _open_standard_streams()
    try:
        try:
            app(prog_name="smdp")
        except SystemExit:
            if sys.stdout is not None:  # None if it was closed at the start
                sys.stdout.flush()
            raise
    except BrokenPipeError:  # the reader has exited, e.g. `head`
        sys.stdout = None  # Python would flush it again at exit
        raise SystemExit(1) from None  # the same code as typer's, which handles most cases
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        try:
            typer.echo(f"smdp: cannot write the output: {error}", err=True)
        except OSError:
            sys.stderr = None
        sys.stdout = None
        raise SystemExit(os.EX_IOERR) from None
