"""Draws timelines with matplotlib, if it is installed."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from smdp._shown import shown

_COLORS = {"F": "#4c78a8", "I": "#54a24b", "W": "#b7d7a8", "B": "#f58518", "OVERLAP_F_B": "#b279a2"}
_OTHER = "#999999"
_KIND = re.compile(r"(?:\d+|\(.*\))?([A-Z_]+)")
_MICROBATCH = re.compile(r"[FIWB](\d+)")
_MOST_LABELS = 2000  # more labels would be unreadable


def kind_of(action: str) -> str:
    """Returns the kind of an action, given as text."""
    found = _KIND.match(action)
    return "" if found is None else found[1]


def plot(
    axis: Any, rows: Sequence[Sequence[str]], timeline: Sequence[Sequence[tuple[float, float]]], name: str
) -> None:
    """Draws a timeline on matplotlib axes."""
    labels = sum(len(row) for row in rows) <= _MOST_LABELS
    for rank, (row, times) in enumerate(zip(rows, timeline, strict=True)):
        for action, (start, end) in zip(row, times, strict=True):
            if end <= start:
                continue
            color = _COLORS.get(kind_of(action), _OTHER)
            axis.barh(
                rank, end - start, left=start, height=0.9, color=color, edgecolor="white", linewidth=0.4
            )
            if labels and kind_of(action) in _COLORS:
                label = ";".join(_MICROBATCH.findall(action))
                axis.text((start + end) / 2, rank, label, ha="center", va="center", fontsize=6)
    axis.set_yticks(range(len(rows)), [f"rank {rank}" for rank in range(len(rows))])
    axis.invert_yaxis()
    axis.set_xlabel("time")
    axis.set_title(name, fontsize=10, parse_math=False)


def save(
    rows: Sequence[Sequence[str]],
    timeline: Sequence[Sequence[tuple[float, float]]],
    path: str | Path,
    name: str,
) -> None:
    """Writes a timeline to a picture file.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: matplotlib does not support the file name extension.
        TypeError: The path is not a path.
    """
    if not isinstance(path, (str, PathLike)):
        raise TypeError(f"[smdp] path = {shown(path)} is not valid; allowed: a path")
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise ImportError(
            f"[smdp] cannot draw {path}: this requires matplotlib, which is not installed: pip install"
            ' "smdp[plots]"'
        ) from None
    end = max((end for row in timeline for _, end in row), default=1)
    shortest = min((end - start for row in timeline for start, end in row if end > start), default=1)
    figure = figures.Figure(figsize=(min(40.0, max(6.0, end / shortest / 6)), 1 + 0.3 * len(rows)))
    known = [f".{ending}" for ending in figure.canvas.get_supported_filetypes()]
    if Path(path).suffix.lower() not in known:
        allowed = ", ".join(known)
        raise ValueError(
            f"[smdp] path = {shown(str(path))} is not valid; allowed: file names ending in {allowed}"
        )
    plot(figure.add_subplot(), rows, timeline, name)
    figure.savefig(path, dpi=150, bbox_inches="tight")
