"""The plots of benchmarks.md, one function each, from the measured figures in docs/benchmarks/."""

from __future__ import annotations

import matplotlib.pyplot as plt
from directives import benchmark_data as data

SMDP, PEER, OTHER = "#2563eb", "#94a3b8", "#cbd5e1"
_BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20}
Column = dict[str, float]


def all_reduce_sizes() -> None:
    figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
    gloo, mpi = "inside_a_host/all_reduce_gloo_intel", "inside_a_host/all_reduce_openmpi_intel"
    for path, name, label, color, line in (
        (gloo, "gloo", "gloo", PEER, "o-"),
        (mpi, "Open MPI", "Open MPI (NumPy)", "#f59e0b", "o-"),
        (gloo, "smdp", "smdp", SMDP, "o-"),
        (mpi, "smdp", "smdp (NumPy)", SMDP, "o:"),
    ):
        times = data.column(path, name)
        sizes = [_bytes(size) for size in times]
        axis.loglog(sizes, times.values(), line, color=color, label=label, markersize=4)
    axis.set_xticks([4, 4 << 10, 1 << 20, 100 << 20], ["4 B", "4 KB", "1 MB", "100 MB"])
    axis.set_yticks([1e-5, 1e-4, 1e-3, 1e-2, 1e-1], ["10 µs", "100 µs", "1 ms", "10 ms", "100 ms"])
    axis.minorticks_off()
    axis.grid(alpha=0.25)
    axis.legend()
    _title(figure, "Time of an all_reduce of float32 on 2 ranks")


def operations() -> None:
    path = "inside_a_host/operations_gloo_epyc_fast"
    ratios = data.column(path, "ratio")
    columns = {"smdp": data.column(path, "smdp"), "gloo": data.column(path, "gloo")}
    notes = {("gloo", name): f"{ratio:g}{data.TIMES}" for name, ratio in ratios.items()}
    _bars("Operations on 25 MB, and how many times as fast as gloo", columns, "ms", height=3.6, notes=notes)


def hosts() -> None:
    path = "between_hosts/ddp_hosts"
    gloo, smdp, bound = (data.column(path, name) for name in ("torch DDP on gloo", "smdp", "bound"))
    figure, axis = plt.subplots(layout="constrained")
    for place, name in enumerate(smdp):
        labels = ("torch DDP on gloo", "smdp", "bound of the link") if place == 0 else (None, None, None)
        axis.bar(place - 0.2, gloo[name], 0.36, color=PEER, label=labels[0])
        axis.bar(place + 0.2, smdp[name], 0.36, color=SMDP, label=labels[1])
        axis.plot([place - 0.42, place + 0.42], [bound[name]] * 2, "k--", linewidth=1, label=labels[2])
        axis.text(place + 0.2, smdp[name] + 0.05, f"{smdp[name]:g} s", ha="center", fontsize=9)
        axis.text(place - 0.2, gloo[name] + 0.05, f"{gloo[name]:g} s", ha="center", fontsize=9)
    axis.set_xticks(range(len(smdp)), [name.replace(" x ", f" {data.TIMES} ") for name in smdp])
    axis.set_xlabel(f"hosts {data.TIMES} ranks per host, links of 400 Mbit/s")
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    figure.legend(ncols=3, loc="outside lower center", fontsize=9)
    _title(figure, "Step of DDP, 75.7 MB of gradients")


def wire_types() -> None:
    steps = {"float32": data.column("between_hosts/ddp_hosts", "smdp")["2 x 2"]}
    steps |= data.column("between_hosts/wire_types", "step")
    _bars("The same step on 2 hosts of 2 ranks, by wire type", {"": steps}, "s", height=2.1)


def pipeline_speed() -> None:
    found = data.record("pipelines/training_intel")
    rows = {row[0]: (row[2] + row[4]) / 2 for row in found["rows"] if row[2]}
    rows["allowed by the bubble"] = 1.78
    _bars("GPT-2 in 2 stages: speed-up over one process", {"": rows}, "x", height=2.1, peers=(2, 3))


def engine_overhead() -> None:
    path = "pipelines/engine_overhead"
    names = {"1": "1 module per stage", "8": "8 modules per stage"}
    columns = {
        label: {names[row]: value for row, value in data.column(path, column).items() if row in names}
        for label, column in (("now", "per action"), ("before", "before"))
    }
    _bars("What the pipeline engine takes per action", columns, "us", height=2.2)


def memory_measures() -> None:
    memory = data.column("planning/fit_a_bigger_model", "memory")
    _bars("Memory of two ranks that train the GPT-2 below", {"": memory}, "MB", height=3.2, peers=(0,))


def tensorflow_steps() -> None:
    names = ["smdp", "Horovod, Open MPI", "Horovod, gloo"]
    columns = {name: data.column("tensorflow/gradients_intel", name) for name in names}
    _bars("Step of TensorFlow, by gradients", columns, "ms", height=3)


def tensorflow_ratios() -> None:
    columns = {}
    for name, label in (
        ("gradients_intel", "Intel Xeon"),
        ("gradients_epyc_avx512", "AMD EPYC"),
        ("gradients_epyc_fast", "AMD EPYC, fast hour"),
    ):
        ratios = data.column(f"tensorflow/{name}", "ratio")
        bound = {row: value for row, value in ratios.items() if row.removesuffix(", unbound") not in ratios}
        columns[label] = {row.removesuffix(", unbound"): value for row, value in (bound | ratios).items()}
        columns[label] = {
            row: columns[label][row] for row in data.column("tensorflow/gradients_intel", "ratio")
        }
    title = "How many times as fast as Horovod on Open MPI"
    _bars(title, columns, "x", height=3, colors=("#93c5fd", "#3b82f6", "#1e3a8a"))


def trainer_step() -> None:
    steps = data.column("trainer/trainer_step", "step")
    _bars("Step of the Trainer, 5 million parameters", {"": steps}, "ms", height=1.8, peers=(0, 2))


def trainer_communication() -> None:
    alone = data.column("trainer/trainer_step", "communication alone")
    _bars("Communication alone, 19.3 MB of gradients", {"": alone}, "ms", height=1.5, peers=(0,))


def _bars(
    title: str,
    columns: dict[str, Column],
    unit: str,
    *,
    height: float,
    colors: tuple[str, ...] = (SMDP, PEER, OTHER),
    peers: tuple[int, ...] = (),
    notes: dict[tuple[str, str], str] | None = None,
) -> None:
    """Draws a group of horizontal bars for each row, one for each column, with the value at its end.

    Args:
        title: What is shown.
        columns: Values by row, by column; times in seconds, memory in MB.
        unit: In which they are written.
        height: Of the picture, in inches.
        colors: One for each column.
        peers: Rows in the color of a peer, where there is one column.
        notes: Bold text behind a value, by column and row.
    """
    signs = {"us": (1e6, " µs"), "ms": (1e3, " ms"), "s": (1, " s"), "MB": (1, " MB"), "x": (1, data.TIMES)}
    scale, sign = signs[unit]
    figure, axis = plt.subplots(figsize=(7, height), layout="constrained")
    rows = list(next(iter(columns.values())))
    thick = 0.8 / len(columns)
    for at, (label, values) in enumerate(columns.items()):
        for place, name in enumerate(rows):
            y = place + (at - (len(columns) - 1) / 2) * thick
            value = values[name] * scale
            color = PEER if place in peers else colors[at]
            axis.barh(y, value, thick * 0.9, color=color, label=label if label and place == 0 else None)
            text = f" {value:.{3 if unit == 'us' else 4}g}{sign}"
            axis.text(value, y, text, va="center", fontsize=9)
            if notes and (label, name) in notes:
                behind = {"xytext": (6 * len(text), 0), "textcoords": "offset points"}
                axis.annotate(notes[label, name], (value, y), va="center", weight="bold", **behind)
    axis.set_yticks(range(len(rows)), rows)
    axis.invert_yaxis()
    axis.set_xticks([])
    axis.margins(x=0.2)
    axis.spines["bottom"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    if len(columns) > 1:
        figure.legend(ncols=len(columns), loc="outside lower center", fontsize=9)
    _title(figure, title)


def _title(figure: plt.Figure, title: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, weight="bold")


def _bytes(size: str) -> int:
    number, unit = size.split()
    return int(number) * _BYTES[unit]
