"""The command `smdp`; a command's module is imported when the command runs, so that --help is quick."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from smdp.cli.bench import DTYPES, OPERATIONS, WIRES
from smdp.cli.binding import BindTo

__all__ = ["app", "main"]

# Columns of a table that goes to no terminal.
_FILE_WIDTH = 120

# A full disk, a limit, a device that fails.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

app = typer.Typer(
    name="smdp",
    help="Distributed training on many processes and many machines.",
    no_args_is_help=True,
    rich_markup_mode=None,  # rich costs 50 ms on every --help
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
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command("run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})
def _run(
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


@app.command("env")
def _env(
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only say what keeps smdp from working; exit code 1 if anything.")
    ] = False,
) -> None:
    """Describe this machine and installation; what one pastes into a bug report (secrets are masked)."""
    from smdp.cli import env

    if check:
        failures = env.failures()
        for failure in failures:
            typer.echo(f"[smdp] {failure}", err=True)
        raise typer.Exit(1 if failures else 0)
    typer.echo(env.report(as_json=json))


# Options of `smdp bench` that say nothing about a replay, and those that are about nothing else.
_OF_COLLECTIVES = ("begin", "end", "factor", "dtype")
_OF_REPLAYS = ("compression", "gradients", "forward_ms", "backward_ms", "in_forward")


def _refuse_foreign(context: typer.Context, operation: str) -> None:
    """Refuse options that the operation would pass over."""
    foreign = _OF_COLLECTIVES if operation == "ddp" else _OF_REPLAYS if operation in OPERATIONS else ()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in foreign and source is not None and source.name == "COMMANDLINE":
            whose = "a collective" if operation == "ddp" else "ddp"
            raise ValueError(f"{parameter.opts[0]} is for {whose}, not for {operation}; leave it out")


@app.command("bench")
def _bench(
    context: typer.Context,
    operation: Annotated[
        str,
        typer.Argument(
            help=f"One of {', '.join(OPERATIONS)}; or ddp, a replay of training.",
            autocompletion=lambda incomplete: [
                name for name in (*OPERATIONS, "ddp") if name.startswith(incomplete)
            ],
        ),
    ],
    nproc: Annotated[int, typer.Option("-n", "--nproc-per-node", help="Number of ranks.")] = 2,
    begin: Annotated[str, typer.Option("-b", "--begin", help="Smallest size, e.g. 4K.")] = "4K",
    end: Annotated[str, typer.Option("-e", "--end", help="Largest size, e.g. 100M.")] = "100M",
    factor: Annotated[float, typer.Option("-f", "--factor", help="From one size to the next.")] = 5.0,
    dtype: Annotated[str, typer.Option("--dtype", help=f"One of {', '.join(DTYPES)}.")] = "float32",
    against: Annotated[
        str, typer.Option("--against", help="Peers, comma-separated: gloo, gloo4, openmpi.")
    ] = "",
    iters: Annotated[
        int | None, typer.Option("--iters", min=1, help="Iterations per size. Default: by the size.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    compression: Annotated[
        str, typer.Option("--compression", help=f"ddp: of {', '.join(WIRES)}, comma-separated.")
    ] = "none",
    gradients: Annotated[
        str, typer.Option("--gradients", help="ddp: a model, e.g. bert-base, transformer-6x512 or 1000x4K.")
    ] = "transformer-6x512",
    forward_ms: Annotated[float, typer.Option("--forward-ms", min=0, help="ddp: of a layer.")] = 10,
    backward_ms: Annotated[float, typer.Option("--backward-ms", min=0, help="ddp: of a layer.")] = 20,
    in_forward: Annotated[
        bool, typer.Option("--in-forward", help="ddp: also with optimizer steps in the next forward.")
    ] = False,
) -> None:
    """Measure a collective beside other libraries', alternating in one run, in nccl-tests' columns."""
    from smdp._errors import ConfigError
    from smdp.cli import bench

    try:
        _refuse_foreign(context, operation)
        if operation == "ddp":
            code = bench.bench_ddp(
                nproc=nproc,
                against=against,
                compression=compression,
                gradients=gradients,
                forward_ms=forward_ms,
                backward_ms=backward_ms,
                in_forward=in_forward,
                as_json=json,
                **({} if iters is None else {"steps": iters}),
            )
            raise typer.Exit(code)
        code = bench.bench(
            operation,
            nproc=nproc,
            begin=begin,
            end=end,
            factor=factor,
            dtype=dtype,
            against=against,
            iters=iters,
            as_json=json,
        )
    except (ValueError, ConfigError) as error:
        typer.echo(f"smdp bench: {error}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(code)


@app.command("simulate")
def _simulate(
    what: Annotated[str, typer.Argument(help="ddp: a step of data parallel training.")],
    hosts: Annotated[str, typer.Option("--hosts", help="Number of hosts; several, comma-separated.")] = "1",
    ranks_per_host: Annotated[
        int, typer.Option("--ranks-per-host", min=1, max=1_000_000, help="They share the link.")
    ] = 1,
    link: Annotated[
        str,
        typer.Option(
            "--link", help="Of a host, per direction, e.g. 400Mbit or 100Gbit; 0.956 of it is payload."
        ),
    ] = "10Gbit",
    gradients: Annotated[
        str, typer.Option("--gradients", help="A model, e.g. bert-large, transformer-6x512 or 1000x4K.")
    ] = "bert-large",
    forward_ms: Annotated[float, typer.Option("--forward-ms", min=0, help="Of all layers together.")] = 100,
    backward_ms: Annotated[float, typer.Option("--backward-ms", min=0, help="Of all together.")] = 200,
    latency_us: Annotated[
        float,
        typer.Option("--latency-us", min=0, help="From a send to the wake-up of the peer on another host."),
    ] = 30,
    compression: Annotated[str, typer.Option("--compression", help=f"One of {', '.join(WIRES)}.")] = "none",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict a step's time on hosts you do not have, by the cost model; beside ring all_reduce."""
    from smdp._errors import SmdpError
    from smdp._shown import shown
    from smdp.cli import gradients as models
    from smdp.cli import simulate

    try:
        if what != "ddp":
            raise ValueError(f"there is no simulation of {what!r}; allowed: ddp")
        counts = [
            int(text) if text.strip().isdecimal() and len(text) < 10 else 0 for text in hosts.split(",")
        ]
        if min(counts) < 1:
            raise ValueError(
                f"--hosts={shown(hosts)} is not valid; allowed: integers from 1 to 999999999, comma-separated"
            )
        model = models.parse("--gradients", gradients)
        rows = simulate.simulate_ddp(
            hosts=counts,
            ranks_per_host=ranks_per_host,
            link=link,
            model=model,
            forward_ms=forward_ms,
            backward_ms=backward_ms,
            compression=compression,
            latency_us=latency_us,
        )
    except (ValueError, SmdpError) as error:
        typer.echo(f"smdp simulate: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(simulate.as_json(rows) if json else simulate.as_text(rows, model, link))


_schedules = typer.Typer(help="List, draw and measure pipeline schedules.", no_args_is_help=True)
app.add_typer(_schedules, name="schedule")


def _schedule_names(incomplete: str) -> list[str]:
    from smdp.cli import schedule

    return schedule.names(incomplete)


@_schedules.command("list")
def _list_schedules() -> None:
    """List the schedules, with a line about each."""
    from smdp.cli import schedule

    typer.echo(schedule.listing())


@_schedules.command("show")
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
        int | None, typer.Option("--virtual-stages", help="Per rank. Default: what the schedule needs.")
    ] = None,
    active_microbatches: Annotated[
        int | None,
        typer.Option("--active-microbatches", help="smp_interleaved: most under way. Default: stages + 2."),
    ] = None,
    forward: Annotated[float, typer.Option("--forward", help="Time of a full stage.")] = 1,
    backward_input: Annotated[float, typer.Option("--backward-input", help="Of its input gradient.")] = 1,
    backward_weight: Annotated[float, typer.Option("--backward-weight", help="Of its weight gradient.")] = 1,
    hop: Annotated[float, typer.Option("--hop", help="Time from rank to rank.")] = 0,
    memory_cap: Annotated[
        float | None, typer.Option("--memory-cap", help="auto: most microbatches' activations on a rank.")
    ] = None,
    width: Annotated[int, typer.Option("--width", help="Most characters of a line.")] = 120,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, without the drawing.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Also write .csv, .json, or a picture: .png, .svg, .pdf (needs the extra smdp[plots]).",
        ),
    ] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="Also write a Chrome trace.")] = None,
) -> None:
    """Draw a schedule, with its makespan, bubble and memory."""
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


@app.command("plan")
def _plan(
    model_config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A Hugging Face config.json.")],
    batch: Annotated[int, typer.Option("--batch", help="Samples of a step, over all ranks.")],
    sequence: Annotated[int, typer.Option("--sequence", help="Tokens of a sample.")],
    hosts: Annotated[int, typer.Option("--hosts", help="Number of hosts.")] = 1,
    ranks_per_host: Annotated[int, typer.Option("--ranks-per-host", help="Devices of a host.")] = 8,
    device_memory: Annotated[str, typer.Option("--device-memory", help="Of a device.")] = "40GB",
    link: Annotated[str, typer.Option("--link", help="Rate of a host's network.")] = "400Gbit",
    interconnect: Annotated[
        str, typer.Option("--interconnect", help="Of a device to others of its host, both ways together.")
    ] = "600GBps",
    tflops: Annotated[float, typer.Option("--tflops", help="Of a device, at its best.")] = 312,
    efficiency: Annotated[
        float, typer.Option("--efficiency", help="The part of that which matrix products reach.")
    ] = 0.5,
    margin: Annotated[float, typer.Option("--margin", help="The part of memory that may be planned.")] = 0.8,
    precision: Annotated[str, typer.Option("--precision", help="fp32, fp16, bf16, amp, ...")] = "bf16",
    flash_attention: Annotated[
        bool, typer.Option("--flash-attention", help="No matrix of scores is kept.")
    ] = False,
    offload: Annotated[
        bool, typer.Option("--offload", help="Also look at optimizer states in host memory.")
    ] = False,
    most: Annotated[int, typer.Option("--most", min=1, help="How many to show.")] = 10,
    explain: Annotated[bool, typer.Option("--explain", help="Say why each other one was rejected.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Also write the timeline of the best, as a Chrome trace.")
    ] = None,
) -> None:
    """Say which layout of a model fits on which machines, and how fast it is; nothing is run.

    Exit code 1: nothing fits.
    """
    from rich.console import Console

    from smdp._errors import SmdpError
    from smdp.cli import plan

    try:
        found = plan.run(
            model_config,
            hosts=hosts,
            ranks_per_host=ranks_per_host,
            device_memory=device_memory,
            batch=batch,
            sequence=sequence,
            link=link,
            interconnect=interconnect,
            tflops=tflops,
            efficiency=efficiency,
            margin=margin,
            precision=precision,
            flash_attention=flash_attention,
            offload=offload,
            most=most,
        )
        if trace is not None and found.options:
            plan.write_trace(found, trace)
    except (ValueError, TypeError, OSError, SmdpError) as error:
        typer.echo(f"smdp plan: {error}", err=True)
        raise typer.Exit(2) from None
    if json:
        typer.echo(plan.as_json(found, most=most, explain=explain))
    else:
        plan.show(
            found,
            most=most,
            explain=explain,
            console=Console(width=None if sys.stdout.isatty() else _FILE_WIDTH),
        )
    if not found.options:
        if trace is not None:
            typer.echo(f"smdp plan: nothing fits, so that {trace} was not written", err=True)
        raise typer.Exit(1)


def _open_standard_streams() -> None:
    """What starts a daemon may have closed them; a pipe of ours would else get one's number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


_traces = typer.Typer(help="Read the traces that SMDP_TRACE=dir makes.", no_args_is_help=True)
app.add_typer(_traces, name="trace")
_Directory = Annotated[Path, typer.Argument(help="What SMDP_TRACE named.")]


@_traces.command("merge")
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


@_traces.command("report")
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


def main() -> None:
    """Run the command line."""
    _open_standard_streams()
    try:
        try:
            app(prog_name="smdp")
        except SystemExit:
            if sys.stdout is not None:  # closed from the beginning
                sys.stdout.flush()
            raise
    except BrokenPipeError:  # the reader has gone, as `head` does
        sys.stdout = None  # Python would try once more at its end
        raise SystemExit(1) from None  # as typer, which meets most of them
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        try:
            typer.echo(f"smdp: the output cannot be written: {error}", err=True)
        except OSError:
            sys.stderr = None
        sys.stdout = None
        raise SystemExit(os.EX_IOERR) from None
