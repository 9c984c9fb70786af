"""Diagrams of how smdp is built and of the path of a gradient, one function each."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

BLUE, GREEN, ORANGE, GRAY = "#dbeafe", "#dcfce7", "#ffedd5", "#e5e7eb"
EDGE = "#64748b"


def layers() -> None:
    axis = _page(10, 5.6)
    for at, (name, what) in enumerate(
        (
            ("smdp.torch", "PyTorch"),
            ("smdp.tensorflow", "TensorFlow 2"),
            ("smdp.transformers", "Trainer, Accelerate"),
            ("smdp.lightning", "Lightning"),
            ("smdp.compat", "Horovod, SMDDP, SMP"),
        )
    ):
        _box(axis, 2 * at, 4.7, 1.85, 0.8, name, what, BLUE)
    _box(axis, 0, 3.7, 5.85, 0.7, "smdp", "Python: groups, NumPy, plans, memory, pipelines", GREEN)
    _box(axis, 6, 3.7, 3.85, 0.7, "smdp run", "launcher and commands", GREEN)
    _box(axis, 0, 2.85, 9.85, 0.55, "smdp._core: nanobind bindings, which release the GIL", "", GREEN)
    axis.text(0, 2.5, "libsmdp, C++20, without Python or a framework", va="center", color=EDGE)
    _box(axis, 0, 1.6, 3.2, 0.65, "fusion", "gradients of a step", ORANGE)
    _box(axis, 3.32, 1.6, 3.2, 0.65, "collectives", "algorithms and planner", ORANGE)
    _box(axis, 6.65, 1.6, 3.2, 0.65, "rendezvous", "from a store to connections", ORANGE)
    _box(axis, 0, 0.8, 6.52, 0.65, "transport", "shared memory, TCP, the progress thread", ORANGE)
    _box(axis, 6.65, 0.8, 3.2, 0.65, "reduce", "sums: generic, AVX2, AVX-512, NEON", ORANGE)
    _box(axis, 0, 0, 6.52, 0.65, "cost, sharding, partition, pipeline, memory", "pure functions", GRAY)
    _box(axis, 6.65, 0, 3.2, 0.65, "common", "coroutines, logging, descriptors", GRAY)


def gradient() -> None:
    """Draws two hosts with two ranks each, and the three stages through which a gradient passes."""
    axis = _page(10, 4.2)
    first, second, third = 1.8, 5.0, 8.3
    for x, name, how in (
        (4.2, "1  reduce-scatter", "shared memory"),
        (5.8, "2  exchange", "TCP"),
        (7.45, "3  all-gather", "shared memory"),
    ):
        axis.text(x, 4.02, name, ha="center", va="center", weight="bold", fontsize=9)
        axis.text(x, 3.7, how, ha="center", va="center", color=EDGE, fontsize=9)
    for host in range(2):
        bottom = 1.85 - 1.75 * host
        box = {"boxstyle": "round,pad=0,rounding_size=0.1", "linestyle": "--"}
        axis.add_patch(FancyBboxPatch((0.05, bottom), 9.95, 1.6, fc="none", ec=EDGE, lw=1, **box))
        axis.text(0.2, bottom + 1.44, f"host {'AB'[host]}", va="center", color=EDGE, fontsize=8)
        for rank in range(2):
            y = bottom + 0.82 - 0.68 * rank
            _box(axis, 0.2, y, 1.25, 0.44, f"rank {2 * host + rank}", "", BLUE)
            _slices(axis, first, y, [BLUE, BLUE])
            _slices(axis, second, y, [ORANGE if one == rank else "none" for one in range(2)])
            _slices(axis, third, y, [GREEN, GREEN])
            _arrow(axis, (1.47, y + 0.22), (first - 0.03, y + 0.22))
            _arrow(axis, (first + 1.63, y + 0.22), (second - 0.03, y + 0.22))
            _arrow(axis, (second + 1.63, y + 0.22), (third - 0.03, y + 0.22))
        for x in (4.2, 7.45):  # the ranks of a host meet
            _arrow(axis, (x, bottom + 0.36), (x, bottom + 1.04), both=True, color="#ea580c")
    for rank, x in ((0, second + 0.4), (1, second + 1.2)):
        top, low = 1.85 + 0.82 - 0.68 * rank, 0.1 + 0.82 - 0.68 * rank + 0.44
        _arrow(axis, (x, top - 0.02), (x, low + 0.02), both=True, color="#ea580c")


def step() -> None:
    """Draws when the parts of a step run: buffers travel while backward still makes gradients."""
    _, axis = plt.subplots(figsize=(7, 2.3), layout="constrained")
    rows = ["computation", "network"]
    for name, begin, length, color in (
        ("forward", 0, 3, BLUE),
        ("backward 3", 3, 2, GREEN),
        ("backward 2", 5, 2, GREEN),
        ("backward 1", 7, 2, GREEN),
        ("optimizer", 10.6, 1.4, ORANGE),
    ):
        _bar(axis, 0, begin, length, name, color)
    for name, begin, length in (("buffer 3", 5, 1.8), ("buffer 2", 7, 1.8), ("buffer 1", 9, 1.6)):
        _bar(axis, 1, begin, length, name, GRAY)
    axis.set_title("Buffers travel while backward computes the next gradients")
    axis.set_yticks(range(2), rows)
    axis.set_ylim(1.5, -0.5)
    axis.set_xticks([])
    axis.set_xlabel("time")
    axis.spines[["left", "bottom"]].set_visible(False)
    axis.tick_params(length=0)


def ghosts() -> None:
    """Draws which rank of three computes each line of a model, and which values travel."""
    axis = _page(10, 4.5)
    columns = (2.0, 4.7, 7.4)
    for rank, x in enumerate(columns):
        axis.text(x + 1.2, 4.3, f"rank {rank}, stage {rank}", ha="center", weight="bold", fontsize=9)
    lines = (
        ("mask", (1, 1, 1)),
        ("y = a(x)", (1, 0, 0)),
        ("z = b(y)", (0, 1, 0)),
        ("s = y + z", (0, 1, 0)),
        ("head(s)", (0, 0, 1)),
        ("loss_fn", (0, 0, 1)),
        (".item()", (0, 0, 1)),
    )
    y = {}
    for at, (name, computed) in enumerate(lines):
        y[name] = 3.65 - 0.6 * at
        axis.text(0, y[name] + 0.22, name, va="center", family="monospace")
        for rank, x in enumerate(columns):
            is_computed = bool(computed[rank])
            word = "computed" if is_computed else "the number" if name == ".item()" else "ghost"
            color = GREEN if is_computed else "none"
            _box(axis, x, y[name], 2.4, 0.44, word, "", color, dashed=not is_computed)
    for source, target, rank in (("y = a(x)", "z = b(y)", 0), ("s = y + z", "head(s)", 1)):
        _arrow(
            axis,
            (columns[rank] + 2.4, y[source] + 0.2),
            (columns[rank + 1], y[target] + 0.24),
            color="#ea580c",
        )
    for rank in (1, 0):
        _arrow(
            axis,
            (columns[rank + 1], y[".item()"] + 0.22),
            (columns[rank] + 2.4, y[".item()"] + 0.22),
            color="#ea580c",
        )


def _page(width: float, height: float) -> Axes:
    _, axis = plt.subplots(figsize=(width * 0.7, height * 0.72), layout="constrained")
    axis.set_xlim(-0.05, width)
    axis.set_ylim(-0.1, height)
    axis.axis("off")
    return axis


def _box(
    axis: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    name: str,
    what: str,
    color: str,
    *,
    dashed: bool = False,
) -> None:
    style = "round,pad=0,rounding_size=0.08"
    line = {"ls": "--", "ec": "#94a3b8"} if dashed else {"ec": EDGE}
    axis.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, fc=color, lw=1, **line))
    shift = height * 0.18 if what else 0
    quiet = "#94a3b8" if dashed else "black"
    axis.text(x + width / 2, y + height / 2 + shift, name, ha="center", va="center", fontsize=9, color=quiet)
    if what:
        axis.text(
            x + width / 2,
            y + height / 2 - height * 0.22,
            what,
            ha="center",
            va="center",
            fontsize=7.5,
            color="#475569",
        )


def _slices(axis: Axes, x: float, y: float, colors: list[str]) -> None:
    for at, color in enumerate(colors):
        style = {"fc": color, "ec": EDGE, "ls": "-" if color != "none" else ":"}
        axis.add_patch(plt.Rectangle((x + 0.8 * at, y), 0.8, 0.44, lw=1, **style))
        if color != "none":
            axis.text(x + 0.8 * at + 0.4, y + 0.22, f"slice {at}", ha="center", va="center", fontsize=8)


def _arrow(
    axis: Axes, start: tuple[float, float], end: tuple[float, float], *, both: bool = False, color: str = EDGE
) -> None:
    style = {"arrowstyle": "<->" if both else "->", "color": color, "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", end, start, arrowprops=style)


def _bar(axis: Axes, row: int, begin: float, length: float, name: str, color: str) -> None:
    axis.barh(row, length - 0.08, left=begin, height=0.62, color=color, edgecolor=EDGE, linewidth=1)
    axis.text(begin + length / 2, row, name, ha="center", va="center", fontsize=8.5)
