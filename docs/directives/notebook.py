"""`{notebook} examples/quickstart.ipynb`: the cells of a notebook with their outputs, as a page.

The first heading is left out, because a page has its own.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_DOCS = Path(__file__).resolve().parents[1]
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


class NotebookDirective(SphinxDirective):
    """All cells of one notebook."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        path = _DOCS / self.arguments[0]
        self.env.note_dependency(str(path))
        found: list[nodes.Node] = []
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                text = re.sub(r"\A# .*\n*", "", text)
                found += self.parse_text_to_nodes(text, allow_section_headings=True)
                continue
            found.append(nodes.literal_block(text, text, language="ipython3" if "%" in text else "python"))
            for output in cell["outputs"]:
                found += _shown(output)
        return found


def _shown(output: dict[str, Any]) -> list[nodes.Node]:
    if output["output_type"] == "error":
        return [_text(_COLORS.sub("", "\n".join(output["traceback"])))]
    if "text" in output:
        return [_text("".join(output["text"]))]
    content = output["data"]
    for kind in ("image/svg+xml", "image/png"):
        if kind in content:
            data = "".join(content[kind])
            coded = data if kind == "image/png" else base64.b64encode(data.encode()).decode()
            source = f"data:{kind};base64,{coded.strip()}"
            tag = f'<img class="drawing" alt="output of the cell above" src="{source}">'
            return [nodes.raw("", tag, format="html")]
    return [_text("".join(content["text/plain"]))]


def _text(text: str) -> nodes.literal_block:
    return nodes.literal_block(text, text, language="text", classes=["output"])


def setup(app: Sphinx) -> None:
    app.add_directive("notebook", NotebookDirective)
