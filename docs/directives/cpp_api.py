"""`{smdp-headers}`: what public C++ headers declare, from their comments, through Doxygen.

The content has one header per line, and each becomes a section. Where Doxygen is not installed, a note says
so and names the header; everything else is built as always.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

HAS_DOXYGEN = shutil.which("doxygen") is not None
_DOCS = Path(__file__).resolve().parents[1]
_HEADERS = _DOCS.parent / "core" / "include" / "smdp"


class HeadersDirective(SphinxDirective):
    """A section for each header."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        text = "\n\n".join(self.section(name.strip()) for name in self.content if name.strip())
        return self.parse_text_to_nodes(text, allow_section_headings=True)

    def section(self, name: str) -> str:
        """Returns the Markdown of a header's section."""
        header = _HEADERS / name
        assert header.is_file(), f"there is no header {name}"
        self.env.note_dependency(str(header))
        missing = f"Doxygen was not there when these pages were made; read core/include/smdp/{name}."
        parts = declarations(name) if HAS_DOXYGEN else [f"```{{note}}\n{missing}\n```"]
        return "\n\n".join([f"## smdp/{name}", *parts])


def declarations(header: str) -> list[str]:
    """Give a header's first comment, then breathe's directive for each class, enumeration and function."""
    file = _compound(header.replace("_", "__").replace(".", "_8"))  # as Doxygen spells it in names of files
    paragraphs = [" ".join("".join(one.itertext()).split()) for one in _description(file)]
    classes = [(one.text or "", one.get("refid", "")) for one in file.findall("innerclass")]
    found: list[tuple[int, str]] = []
    for name, refid in classes:
        if not any(name.startswith(f"{outer}::") for outer, _ in classes):
            compound = _compound(refid)
            found.append((_line(compound), f"```{{doxygen{compound.get('kind')}}} {name}\n:members:\n```"))
    for space in file.findall("innernamespace"):
        for member in _compound(space.get("refid", "")).iter("memberdef"):
            if member.find(f"location[@file='smdp/{header}']") is not None:
                found.append((_line(member), _member(member)))
    return paragraphs + [text for _, text in sorted(found)]


def _description(compound: ElementTree.Element) -> list[ElementTree.Element]:
    return compound.findall("briefdescription/para") + compound.findall("detaileddescription/para")


def _member(member: ElementTree.Element) -> str:
    kind = member.get("kind", "")
    call = member.findtext("argsstring", "") if kind == "function" else ""
    return f"```{{doxygen{kind}}} {member.findtext('qualifiedname')}{call}\n```"


def _compound(name: str) -> ElementTree.Element:
    found = (
        ElementTree.parse(_DOCS / "_build" / "doxygen" / "xml" / f"{name}.xml").getroot().find("compounddef")
    )
    assert found is not None
    return found


def _line(element: ElementTree.Element) -> int:
    location = element.find("location")
    assert location is not None
    return int(location.get("line", "0"))


def run_doxygen(app: Sphinx) -> None:
    """Make the XML that breathe reads; Doxygen's warnings end the build."""
    if not HAS_DOXYGEN:
        logging.getLogger(__name__).info("doxygen is not installed: the C++ reference is left out")
        return
    (_DOCS / "_build" / "doxygen").mkdir(parents=True, exist_ok=True)
    subprocess.run(["doxygen"], cwd=_DOCS, check=True)


def setup(app: Sphinx) -> None:
    app.add_directive("smdp-headers", HeadersDirective)
    app.connect("builder-inited", run_doxygen)
