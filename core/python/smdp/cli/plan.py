"""`smdp plan`: finds the layouts of a model that fit on given machines, and estimates their speed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from smdp import config, memory
from smdp.cli.simulate import check_time, parse_link
from smdp.plan import Cluster, Option, Plan, advice, plan, snippet
from smdp.plan.rank_memory import kinds

_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_INTERCONNECTS = {"gpu": "600GBps", "cpu": "10GBps"}  # by device
_BINARY = {"k": 2.0**10, "m": 2.0**20, "g": 2.0**30, "t": 2.0**40}


def parse_bytes(option: str, text: str, *, is_rate: bool = False) -> float:
    """Parses a size such as 40GB or 16GiB in bytes, or a rate such as 600GBps or 600GB/s in bytes per second.

    Raises:
        ConfigError: The text is not a size, or not a rate.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b(/s|ps)?", text.strip().lower())
    if (
        found is None
        or (found[4] is not None) != is_rate
        or float(found[1]) == 0
        or (found[3] and not found[2])
    ):
        allowed = "a rate above 0, e.g. 600GBps" if is_rate else "a size above 0, e.g. 40GB or 16GiB"
        raise config.invalid(option, text, allowed)
    return float(found[1]) * (_BINARY[found[2]] if found[3] else _SCALES[found[2]])


def run(
    model_config: Path,
    *,
    hosts: int,
    ranks_per_host: int,
    device_memory: str,
    batch: int,
    sequence: int,
    link: str,
    interconnect: str | None,
    tflops: float,
    efficiency: float,
    device: str,
    cores_per_host: float | None,
    gflops: float | None,
    gflops_16bit: float | None,
    memory_bandwidth: str | None,
    layer_overhead_us: float,
    latency_us: float,
    disk_bandwidth: str,
    margin: float,
    precision: str,
    flash_attention: bool,
    offload: str,
    most: int,
) -> Plan:
    """Runs the search with the arguments of the command.

    Raises:
        ValueError: An argument is invalid.
        ConfigError: The file or an argument with a unit is invalid.
    """
    if not 0 < tflops < 1e12:
        raise config.invalid("--tflops", str(tflops), "a number above 0")
    if device not in _INTERCONNECTS:
        raise config.invalid("--device", device, ", ".join(_INTERCONNECTS))
    is_cpu = device == "cpu"
    if is_cpu and not (gflops is not None and 0 < gflops < 1e9):
        raise config.invalid("--gflops", str(gflops), "a number above 0, with --device cpu")
    of_cores = {"--gflops": gflops, "--gflops-16bit": gflops_16bit, "--cores-per-host": cores_per_host}
    for option, value in of_cores.items():
        if value is not None and not is_cpu:
            raise config.invalid(option, str(value), "only with --device cpu")
    for option, value in (("--layer-overhead-us", layer_overhead_us), ("--latency-us", latency_us)):
        check_time(option, value)
    cluster = Cluster(
        hosts=hosts,
        ranks_per_host=ranks_per_host,
        device_memory=parse_bytes("--device-memory", device_memory),
        link=parse_link("--link", link),
        interconnect=parse_bytes("--interconnect", interconnect or _INTERCONNECTS[device], is_rate=True)
        / 2,  # vendors state the sum of both directions
        flops=tflops * 1e12 if gflops is None else (gflops_16bit or gflops) * 1e9,
        flops_fp32=0 if gflops is None else gflops * 1e9,
        efficiency=1.0 if is_cpu else efficiency,  # gigaFLOPS are measured, not peaks
        margin=margin,
        cores_per_host=(cores_per_host or ranks_per_host) if is_cpu else 0,
        memory_bandwidth=0
        if memory_bandwidth is None
        else parse_bytes("--memory-bandwidth", memory_bandwidth, is_rate=True),
        layer_overhead=layer_overhead_us / 1e6,
        latency=latency_us / 1e6,
        disk=parse_bytes("--disk-bandwidth", disk_bandwidth, is_rate=True),
    )
    return plan(
        memory.read_config(model_config),
        cluster,
        batch=batch,
        sequence=sequence,
        precision=precision.split(","),
        flash_attention=flash_attention,
        offload=offload,
        simulated=most + 2,
    )


def show(found: Plan, *, most: int, explain: bool, console: Console) -> None:
    """Prints the layouts that fit, with details of the best one, or advice if none fits."""
    if found.options:
        console.print(_ranking(found.options[:most]))
        best = found.options[0]
        console.print(f"Recommended: {best.candidate.describe()}", highlight=False, soft_wrap=True)
        console.print(
            f"{len(found.options)} layouts fit, {len(found.rejected)} do not,"
            f" and {len(found.unusable)} would fit but do not run. Of the layouts within 5 % of"
            " the fastest, the recommended one uses the fewest and simplest features:"
            f" {', '.join(best.candidate.features().values()) or 'none'}.",
            highlight=False,
            soft_wrap=True,
        )
        console.print(_memory(best, found.cluster))
    if explain:
        for one in found.unusable:
            console.print(f"does not run: {one.what}: {one.why}", highlight=False, soft_wrap=True)
        for one in found.rejected:
            console.print(f"rejected: {one.what}: {one.why}", highlight=False, soft_wrap=True)
    if not found.options:
        console.print(advice(found), highlight=False, soft_wrap=True)


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


def _ranking(options: Sequence[Option]) -> Table:
    table = _table("Layouts that fit, by step time")
    for name in ("", "p x t x d", "microbatches", "schedule", "sharding", "checkpoints", "other"):
        table.add_column(name, no_wrap=True)
    for name in ("step, s", "bubble", "GB"):
        table.add_column(name, justify="right", no_wrap=True)
    has_several = len({option.candidate.precision for option in options}) > 1
    for place, option in enumerate(options):
        one = option.candidate
        other = [
            *([one.precision] if has_several else []),
            *(["sequence"] if one.sequence_parallel else []),
            *(["activations"] if one.offload_activations else []),
            *(["states"] if one.offload_optimizer else []),
        ]
        schedule = one.schedule if one.pipeline > 1 else "-"
        table.add_row(
            "*" if place == 0 else "",
            f"{one.pipeline} x {one.tensor} x {one.data}",
            f"{one.microbatches} of {one.microbatch_size}",
            schedule + (f" x{one.virtual_stages}" if one.virtual_stages > 1 else ""),
            one.shards,
            one.checkpointing,
            ", ".join(other),
            f"{option.seconds:.4g}",
            f"{option.bubble:.1%}",
            f"{option.peak / 1e9:.1f}",
        )
    return table


def _memory(option: Option, cluster: Cluster) -> Table:
    table = _table(f"Memory of the recommended layout, GB of {cluster.usable_memory / 1e9:.1f} per rank")
    table.add_column("stage", justify="right")
    stages = kinds(option.estimate, option.candidate, cluster)
    used = [kind for kind in stages[0] if any(stage[kind] > 0 for stage in stages)]
    for kind in (*used, "total"):
        table.add_column(kind, justify="right", no_wrap=True)
    for place, stage in enumerate(stages):
        values = [*(stage[kind] for kind in used), sum(stage.values())]
        table.add_row(str(place), *(f"{value / 1e9:.2f}" for value in values))
    return table


def as_json(found: Plan, *, most: int, explain: bool) -> str:
    """Returns the same information as JSON, in bytes and seconds."""
    result: dict[str, Any] = {
        "cluster": asdict(found.cluster),
        "batch": found.batch,
        "sequence": found.sequence,
        "fitting": len(found.options),
        "rejected": len(found.rejected),
        "not_run": len(found.unusable),
        "options": [_entry(option, found) for option in found.options[:most]],
        "advice": advice(found),
    }
    if explain:
        for name, kind in (("why_rejected", found.rejected), ("why_not_run", found.unusable)):
            result[name] = [{"what": one.what, "why": one.why} for one in kind]
    return json.dumps(result, indent=2)


def _entry(option: Option, found: Plan) -> dict[str, Any]:
    return {
        **asdict(option.candidate),
        "python": snippet.python(option.candidate, found.cluster, found.offload),
        "step_seconds": option.seconds,
        "bubble": option.bubble,
        "exposed_reduction_seconds": option.step.reduction,
        "update_seconds": option.step.update,
        "exposed_offload_seconds": option.step.offload,
        "peak_bytes": option.peak,
        "stages": [
            {**stage, "total": sum(stage.values()), "host": estimate.host}
            for stage, estimate in zip(
                kinds(option.estimate, option.candidate, found.cluster), option.estimate.stages, strict=True
            )
        ],
    }


def emitted(found: Plan, form: str) -> str:
    """Returns the recommended layout as Python; empty if nothing fits.

    For the Trainer, it is the first layout that the plugins have arguments for.

    Raises:
        ConfigError: There is no such form.
        ValueError: The plugins have arguments for no layout.
    """
    if form not in snippet.FORMS:
        raise config.invalid("--emit", form, ", ".join(snippet.FORMS))
    if not found.options:
        return ""
    best = found.options[0].candidate
    if form == "python":
        return snippet.python(best, found.cluster, found.offload)
    known = (option.candidate for option in found.options if not snippet.missing_in_trainer(option.candidate))
    return snippet.trainer(next(known, best), found.cluster, found.offload)


def write_trace(found: Plan, path: Path) -> None:
    """Writes the recommended layout's timeline for ui.perfetto.dev.

    Raises:
        ValueError: No layout fits, or the schedule was too long to simulate.
        OSError: The file cannot be written.
    """
    if not found.options:
        raise ValueError("[smdp] no layout fits, so there is no timeline to write")
    simulation = found.options[0].simulation
    if simulation is None:
        raise ValueError("[smdp] the schedule of the recommended layout is too long for a timeline")
    path.write_text(simulation.chrome_trace(), encoding="utf-8")
