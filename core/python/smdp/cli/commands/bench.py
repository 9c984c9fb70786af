"""The `smdp bench` command and its options."""

from __future__ import annotations

from typing import Annotated

import typer

from smdp.cli.bench import DTYPES, OPERATIONS, WIRES

# Options that apply to collectives only, and options that apply to replays of training (ddp) only.
_OF_COLLECTIVES = ("begin", "end", "factor", "dtype")
_OF_REPLAYS = ("compression", "gradients", "forward_ms", "backward_ms", "in_forward")


def _refuse_foreign(context: typer.Context, operation: str) -> None:
    """Raises ValueError for options that the operation would ignore."""
    foreign = _OF_COLLECTIVES if operation == "ddp" else _OF_REPLAYS if operation in OPERATIONS else ()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in foreign and source is not None and source.name == "COMMANDLINE":
            whose = "a collective" if operation == "ddp" else "ddp"
            raise ValueError(f"{parameter.opts[0]} applies to {whose}, not to {operation}; remove it")


def bench_command(
    context: typer.Context,
    operation: Annotated[
        str,
        typer.Argument(
            help=f"One of {', '.join(OPERATIONS)}; or ddp, which replays data-parallel training.",
            autocompletion=lambda incomplete: [
                name for name in (*OPERATIONS, "ddp") if name.startswith(incomplete)
            ],
        ),
    ],
    nproc: Annotated[int, typer.Option("-n", "--nproc-per-node", help="Number of ranks.")] = 2,
    begin: Annotated[str, typer.Option("-b", "--begin", help="Smallest size in bytes, e.g. 4K.")] = "4K",
    end: Annotated[str, typer.Option("-e", "--end", help="Largest size in bytes, e.g. 100M.")] = "100M",
    factor: Annotated[float, typer.Option("-f", "--factor", help="Factor from one size to the next.")] = 5.0,
    dtype: Annotated[str, typer.Option("--dtype", help=f"One of {', '.join(DTYPES)}.")] = "float32",
    against: Annotated[
        str,
        typer.Option(
            "--against",
            help="Libraries to compare with, separated by commas: gloo, gloo4 (four connections), openmpi.",
        ),
    ] = "",
    iters: Annotated[
        int | None,
        typer.Option("--iters", min=1, help="Iterations per size. Default: depends on the size."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    compression: Annotated[
        str,
        typer.Option("--compression", help=f"ddp: one or more of {', '.join(WIRES)}, separated by commas."),
    ] = "none",
    gradients: Annotated[
        str,
        typer.Option(
            "--gradients",
            help="ddp: bert-base, bert-large, gpt2, gpt2-xl, transformer-LAYERSxHIDDEN or COUNTxBYTES.",
        ),
    ] = "transformer-6x512",
    forward_ms: Annotated[
        float, typer.Option("--forward-ms", min=0, help="ddp: milliseconds of a layer's forward.")
    ] = 10,
    backward_ms: Annotated[
        float, typer.Option("--backward-ms", min=0, help="ddp: milliseconds of a layer's backward.")
    ] = 20,
    in_forward: Annotated[
        bool,
        typer.Option(
            "--in-forward", help="ddp: also measure with optimizer steps in the next forward (StepInForward)."
        ),
    ] = False,
) -> None:
    """Measure collectives and compare them with other libraries.

    The libraries take turns in the same run. The columns are those of nccl-tests.
    """
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
