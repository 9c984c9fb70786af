"""Sphinx configuration; `tox -e docs` builds the pages with warnings as errors."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "smdp"
author = "The smdp authors"
copyright = "The smdp authors"
release = metadata.version("smdp")

extensions = [
    "myst_parser",
    "breathe",
    "matplotlib.sphinxext.plot_directive",
    "directives.python_api",
    "directives.cpp_api",
    "directives.links",
    "directives.benchmarks",
    "directives.notebook",
]
plot_formats = ["svg"]
plot_html_show_formats = False
plot_html_show_source_link = False
plot_include_source = False
plot_apply_rcparams = True
# Transparent, and dark on light: docs/static/site.css inverts pictures in dark mode.
plot_rcparams = {
    "figure.figsize": (7, 3.2),
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "savefig.transparent": True,
}
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_title = f"smdp {release}"
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

smartquotes = False
nitpicky = True
# Only smdp's own names have pages here: torch's, NumPy's and those of C++ are left as text.
nitpick_ignore_regex = [
    ("py:(class|exc|obj)", r"(?!smdp\.).*"),
    ("cpp:identifier", r"(?!smdp).*|smdp(::[a-z]+)?"),  # the latter are namespaces
]
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
python_display_short_literal_types = True
toc_object_entries_show_parents = "hide"

breathe_projects = {"smdp": "_build/doxygen/xml"}
breathe_default_project = "smdp"
breathe_domain_by_extension = {"h": "cpp"}
