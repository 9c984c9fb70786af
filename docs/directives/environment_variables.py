"""`{smdp-variables}`: the table of environment variables, from the module that parses them."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from smdp import config


class VariablesDirective(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        rows = [
            f"| `{variable.name}` | {variable.default or 'none'} | {variable.meaning} |"
            for variable in config.VARIABLES
        ]
        table = ["| Variable | Default | Meaning |", "|---|---|---|", *rows]
        return self.parse_text_to_nodes("\n".join(table))


def setup(app: Sphinx) -> None:
    app.add_directive("smdp-variables", VariablesDirective)
