"""The `smdp plan` command and its options."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

# Width of tables if the output is not a terminal.
_FILE_WIDTH = 120


def plan_command(
    model_config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A Hugging Face config.json.")],
    batch: Annotated[int, typer.Option("--batch", help="Samples per step, over all ranks.")],
    sequence: Annotated[int, typer.Option("--sequence", help="Tokens per sample.")],
    hosts: Annotated[int, typer.Option("--hosts", help="Number of hosts.")] = 1,
    ranks_per_host: Annotated[int, typer.Option("--ranks-per-host", help="Devices per host.")] = 8,
    device_memory: Annotated[str, typer.Option("--device-memory", help="Memory of a rank.")] = "40GB",
    link: Annotated[str, typer.Option("--link", help="Network bandwidth of a host.")] = "400Gbit",
    interconnect: Annotated[
        str | None,
        typer.Option(
            "--interconnect",
            help="Bandwidth of a rank to the others of its host, sum of both directions. Default: 600GBps, on"
            " CPUs 10GBps.",
        ),
    ] = None,
    tflops: Annotated[float, typer.Option("--tflops", help="Peak teraFLOPS of a device.")] = 312,
    efficiency: Annotated[
        float, typer.Option("--efficiency", help="Fraction of the peak that matrix products reach.")
    ] = 0.5,
    device: Annotated[
        str, typer.Option("--device", help="gpu, or cpu: ranks of one thread share a host's cores.")
    ] = "gpu",
    cores_per_host: Annotated[
        float | None, typer.Option("--cores-per-host", help="With cpu. Default: one per rank.")
    ] = None,
    gflops: Annotated[
        float | None, typer.Option("--gflops", help="With cpu: measured gigaFLOPS of a core in training.")
    ] = None,
    gflops_16bit: Annotated[
        float | None, typer.Option("--gflops-16bit", help="The same in bf16. Default: as in fp32.")
    ] = None,
    memory_bandwidth: Annotated[
        str | None,
        typer.Option("--memory-bandwidth", help="Parameters, gradients and states that a rank updates."),
    ] = None,
    layer_overhead_us: Annotated[
        float,
        typer.Option("--layer-overhead-us", help="Starting a layer's operators, forward and backward."),
    ] = 500,
    latency_us: Annotated[
        float,
        typer.Option("--latency-us", help="Of a message or collective, besides its bytes."),
    ] = 10,
    disk_bandwidth: Annotated[
        str,
        typer.Option(
            "--disk-bandwidth", help="Of a host's disk, or of its devices to its memory, for --offload."
        ),
    ] = "1GBps",
    margin: Annotated[
        float, typer.Option("--margin", help="Fraction of device memory that a plan may use.")
    ] = 0.8,
    precision: Annotated[
        str,
        typer.Option(
            "--precision", help="Data type of training: fp32, fp16, bf16, amp, ... or several: fp32,bf16."
        ),
    ] = "bf16",
    flash_attention: Annotated[
        bool, typer.Option("--flash-attention", help="Assume that attention does not store its scores.")
    ] = False,
    offload: Annotated[
        str,
        typer.Option("--offload", help="Also offload activations and optimizer states: host, disk:/scratch."),
    ] = "",
    most: Annotated[int, typer.Option("--most", min=1, help="Number of layouts to show.")] = 10,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print why each of the other layouts was rejected.")
    ] = False,
    emit: Annotated[
        str | None,
        typer.Option("--emit", help="Print the recommended layout only, as Python: python, trainer."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="Also write the timeline of the recommended layout as a Chrome trace."),
    ] = None,
) -> None:
    """Find layouts of a model that fit on given machines.

    Estimates the memory and step time of each layout by formula; nothing is run. Exits with 1 if nothing
    fits.
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
            device=device,
            cores_per_host=cores_per_host,
            gflops=gflops,
            gflops_16bit=gflops_16bit,
            memory_bandwidth=memory_bandwidth,
            layer_overhead_us=layer_overhead_us,
            latency_us=latency_us,
            disk_bandwidth=disk_bandwidth,
            margin=margin,
            precision=precision,
            flash_attention=flash_attention,
            offload=offload,
            most=most,
        )
        if trace is not None and found.options:
            plan.write_trace(found, trace)
        text = "" if emit is None else plan.emitted(found, emit)
    except (ValueError, TypeError, OSError, SmdpError) as error:
        typer.echo(f"smdp plan: {error}", err=True)
        raise typer.Exit(2) from None
    if text:
        typer.echo(text, nl=False)
    elif json:
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
            typer.echo(f"smdp plan: no layout fits, so {trace} was not written", err=True)
        raise typer.Exit(1)
