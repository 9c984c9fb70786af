"""The `smdp simulate` command and its options."""

from __future__ import annotations

from typing import Annotated

import typer

from smdp.cli.bench import WIRES


def simulate_command(
    what: Annotated[str, typer.Argument(help="What to simulate: ddp, a step of data-parallel training.")],
    hosts: Annotated[
        str, typer.Option("--hosts", help="Number of hosts, or several numbers separated by commas.")
    ] = "1",
    ranks_per_host: Annotated[
        int,
        typer.Option("--ranks-per-host", min=1, max=1_000_000, help="Ranks per host, which share its link."),
    ] = 1,
    link: Annotated[
        str,
        typer.Option(
            "--link",
            help="Bandwidth of a host's link per direction, e.g. 100Gbit, of which 95.6 % carries data.",
        ),
    ] = "10Gbit",
    gradients: Annotated[
        str,
        typer.Option(
            "--gradients",
            help="bert-base, bert-large, gpt2, gpt2-xl, transformer-LAYERSxHIDDEN or COUNTxBYTES.",
        ),
    ] = "bert-large",
    forward_ms: Annotated[
        float, typer.Option("--forward-ms", min=0, help="Milliseconds of the whole model's forward.")
    ] = 100,
    backward_ms: Annotated[
        float, typer.Option("--backward-ms", min=0, help="Milliseconds of the whole model's backward.")
    ] = 200,
    latency_us: Annotated[
        float,
        typer.Option(
            "--latency-us",
            min=0,
            help="Microseconds from a send until the receiver on another host wakes up.",
        ),
    ] = 30,
    compression: Annotated[str, typer.Option("--compression", help=f"One of {', '.join(WIRES)}.")] = "none",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict step times on hosts that you do not have.

    The times come from smdp's cost model, for smdp and for a ring all_reduce.
    """
    from smdp._errors import SmdpError
    from smdp._shown import shown
    from smdp.cli import gradients as models
    from smdp.cli import simulate

    try:
        if what != "ddp":
            raise ValueError(f"cannot simulate {what!r}; allowed: ddp")
        counts = [
            int(text) if text.strip().isdecimal() and len(text) < 10 else 0 for text in hosts.split(",")
        ]
        if min(counts) < 1:
            raise ValueError(
                f"--hosts={shown(hosts)} is not valid; allowed: integers from 1 to 999999999, separated by"
                " commas"
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
