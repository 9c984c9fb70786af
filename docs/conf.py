"""Sphinx configuration; `tox -e docs` builds the pages with warnings as errors."""

from __future__ import annotations

from importlib import metadata

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from smdp import config

project = "smdp"
author = "The smdp authors"
copyright = "The smdp authors"
release = metadata.version("smdp")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "matplotlib.sphinxext.plot_directive",
]
plot_formats = ["svg"]
plot_html_show_formats = False
plot_html_show_source_link = False
plot_include_source = False
html_theme = "furo"
html_title = f"smdp {release}"
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [("py:class", r"(numpy|np|torch|_core|Any|.*\.Any).*")]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3


class VariablesDirective(SphinxDirective):
    """`{smdp-variables}`: the table of environment variables, from the module that parses them."""

    def run(self) -> list[nodes.Node]:
        rows = [
            f"| `{variable.name}` | {variable.default or 'none'} | {variable.meaning} |"
            for variable in config.VARIABLES
        ]
        table = ["| Variable | Default | Meaning |", "|---|---|---|", *rows]
        return self.parse_text_to_nodes("\n".join(table))


def setup(app: Sphinx) -> None:
    app.add_directive("smdp-variables", VariablesDirective)
