"""Notebooks in pages: a fence `{notebook} examples/quickstart.ipynb` becomes the cells with their outputs.

It becomes Markdown before the page is parsed, so that headings of the notebook are headings of the page. The
first one is left out, because the page has its own.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

_DOCS = Path(__file__).resolve().parents[1]
_FENCE = re.compile(r"^```\{notebook\} (\S+)\n```$", re.MULTILINE)
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


def markdown(path: Path) -> str:
    """Returns the cells of a notebook as Markdown."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text = re.sub(r"\A# .*\n*", "", text)
            parts.append(text.replace("](../", "]("))  # links from examples/
        else:
            parts.append(_fence("python", text))
            parts += map(_shown, cell["outputs"])
    return "\n\n".join(parts)


def _shown(output: dict[str, Any]) -> str:
    if output["output_type"] == "error":
        return _fence("text", _COLORS.sub("", "\n".join(output["traceback"])))
    if "text" in output:
        return _fence("text", "".join(output["text"]))
    content = output["data"]
    for kind in ("image/svg+xml", "image/png"):
        if kind in content:
            data = "".join(content[kind]).strip()
            coded = data if kind == "image/png" else base64.b64encode(data.encode()).decode()
            tag = f'<img class="drawing" alt="a plot" src="data:{kind};base64,{coded}">'
            return _fence("{raw} html", tag)
    return _fence("text", "".join(content["text/plain"]))


def _fence(language: str, text: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````"


def put_in(app: Sphinx, name: str, source: list[str]) -> None:
    """Replaces the fences of a page."""

    def replace(found: re.Match[str]) -> str:
        path = _DOCS / found[1]
        app.env.note_dependency(str(path), docname=name)
        return markdown(path)

    source[0] = _FENCE.sub(replace, source[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", put_in)
