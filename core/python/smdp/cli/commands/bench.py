"""The command `smdp bench`: its options."""

from __future__ import annotations

from typing import Annotated

import typer

from smdp.cli.bench import DTYPES, OPERATIONS, WIRES

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


def bench_command(
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
