"""The README's picture: smdp and gloo on one host, from the measured figures in docs/benchmarks/.

    python docs/plots/speed.py

writes docs/images/speed.svg and speed-dark.svg, which are committed, because GitHub shows them.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from directives import benchmark_data as data

DOCS = Path(__file__).resolve().parents[1]
RECORD = "inside_a_host/operations_gloo_epyc_fast"
LABELS = {
    "all_reduce": "all_reduce",
    "all_reduce, bfloat16": "all_reduce, bfloat16",
    "reduce_scatter": "reduce_scatter",
    "all_gather": "all_gather",
    "broadcast": "broadcast",
}
# By the name of the file: text, quiet text, smdp, gloo.
COLORS = {
    "speed": ("#1f2328", "#59636e", "#2563eb", "#c3cbd5"),
    "speed-dark": ("#f0f6fc", "#9198a1", "#58a6ff", "#4a525c"),
}
_WIDTH, _LEFT, _TOP, _ROW, _BAR = 600, 190, 92, 58, 20
_FONT = "-apple-system,BlinkMacSystemFont,'Segoe UI',Helvetica,Arial,sans-serif"


def picture(name: str) -> str:
    """Returns the picture as SVG."""
    strong, quiet, ours, theirs = COLORS[name]
    smdp, gloo, ratio = (data.column(RECORD, column) for column in ("smdp", "gloo", "ratio"))
    scale = (_WIDTH - _LEFT - 84) / max(gloo[row] for row in LABELS)
    height = _TOP + _ROW * len(LABELS) + 34
    told = ", ".join(f"{label} {ratio[row]:g} times" for row, label in LABELS.items())
    font = f'font-family="{_FONT}" font-size="19" fill="{strong}"'
    title = "A collective on 25 MB, 2 ranks on one host"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" {font}>',
        f"<title>smdp is as many times as fast as gloo: {told}</title>",
        f'<text x="0" y="26" font-size="24" font-weight="600">{title}</text>',
        f'<rect x="0" y="48" width="16" height="16" rx="3" fill="{ours}"/>',
        '<text x="24" y="63">smdp</text>',
        f'<rect x="92" y="48" width="16" height="16" rx="3" fill="{theirs}"/>',
        '<text x="116" y="63">gloo</text>',
        f'<text x="{_WIDTH}" y="63" text-anchor="end" fill="{quiet}">shorter is better</text>',
    ]
    for at, (row, label) in enumerate(LABELS.items()):
        y = _TOP + at * _ROW
        lines.append(f'<text x="{_LEFT - 14}" y="{y + 25}" text-anchor="end">{label}</text>')
        for bar, (times, color) in enumerate(((smdp, ours), (gloo, theirs))):
            top, width = y + bar * (_BAR + 2), times[row] * scale
            value = f"{times[row] * 1e3:.1f} ms"
            lines.append(
                f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_BAR}" rx="3" fill="{color}"/>'
                f'<text x="{_LEFT + width + 9:.1f}" y="{top + 16}" fill="{quiet}">{value}</text>'
            )
        lines.append(
            f'<text x="{_LEFT + smdp[row] * scale + 82:.1f}" y="{y + 16}" font-weight="700" fill="{ours}">'
            f"{ratio[row]:g}{data.TIMES} as fast</text>"
        )
    found = data.record(RECORD)
    cpu = data.machines()[found["machine"]]["cpu"].removeprefix("virtual machine, ").split(",")[0]
    lines.append(
        f'<text x="0" y="{height - 8}" font-size="16" fill="{quiet}">{cpu}, torch'
        f" {found['versions']['torch']}, {found['date']}</text>"
    )
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    for name in COLORS:
        (DOCS / "images" / f"{name}.svg").write_text(picture(name), encoding="utf-8")
