"""Pages are read on code hosts, too, where Sphinx does not run."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from pages import DOCS, PAGES

sys.path.insert(0, str(DOCS))


def test_every_link_has_a_text() -> None:
    empty = [
        f"{page.name}: {link}"
        for page in PAGES
        for link in re.findall(r"(?<!!)\[\s*\]\([^)]*\)", page.read_text(encoding="utf-8"))
    ]
    assert empty == []


def test_generated_blocks_are_current() -> None:
    from generated.__main__ import outdated

    assert [page.name for page in outdated()] == [], "run python docs/generated"


def test_every_command_is_on_its_page() -> None:
    from generated.commands import all_commands

    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    missing = [name for name in all_commands() if f"`smdp {name} [OPTIONS]" not in page]
    assert len(all_commands()) >= 8 and missing == []


def test_commands_install_smdp_from_a_clone() -> None:
    """A command that works only once smdp is published stands in a comment behind one that works today."""
    published = [
        f"{page.name}: {command}"
        for page in PAGES
        for command in re.findall(r"(?m)^\$ ([^#\n]*\bpip install [^#\n]*)", page.read_text(encoding="utf-8"))
        if re.search(r'[\s"]smdp\b', command)
    ]
    assert published == []


def test_links_of_the_package_are_absolute() -> None:
    """The description of the package stands on the index, from where a relative link leads nowhere."""
    description = metadata.metadata("smdp").get_payload()
    assert isinstance(description, str) and "# smdp" in description
    links = re.findall(r"\]\(([^)]+)\)", description)
    assert [link for link in links if not link.startswith("https://")] == []
