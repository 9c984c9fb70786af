"""Names of the API in the text of pages, such as `smdp.torch.pipeline()`, become links to their reference."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

from directives.python_api import DOCUMENTED, find, public_names


@cache
def targets() -> set[str]:
    """Give all names that have a place in the reference."""
    found = set(DOCUMENTED)
    for module in DOCUMENTED:
        for name in public_names(module):
            found.add(f"{module}.{name}")
            if find(f"{module}.{name}").is_class:
                members = find(f"{module}.{name}").members
                found |= {f"{module}.{name}.{member}" for member in members if not member.startswith("_")}
    return found


class LinkNames(SphinxTransform):
    """Literals that are such a name, with or without parentheses."""

    default_priority = 400

    def apply(self, **kwargs: Any) -> None:
        known = targets()
        for literal in list(self.document.findall(nodes.literal)):
            name = re.sub(r"\(.*\)$", "", literal.astext())
            is_free = not isinstance(literal.parent, nodes.reference | addnodes.pending_xref | nodes.title)
            if name in known and is_free:
                link = addnodes.pending_xref(
                    refdomain="py", reftype="obj", reftarget=name, refexplicit=True, refdoc=self.env.docname
                )
                literal.replace_self(link)
                link += literal


def setup(app: Sphinx) -> None:
    app.add_transform(LinkNames)
