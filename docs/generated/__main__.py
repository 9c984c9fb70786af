"""`python docs/generated` rewrites outdated generated blocks of pages; `--check` only names them.

Pages are read on code hosts, too, where Sphinx does not run. What the program itself knows, such as the
options of a command, therefore stands in the page as Markdown, between two comments:

    <!-- generated: command run -->
    ...
    <!-- end of generated -->
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from generated import commands, files, variables

DOCS = Path(__file__).resolve().parents[1]
_WRITERS = {"command": commands.options, "file": files.block, "variables": variables.table}
_BLOCK = re.compile(
    r"(?P<head><!-- generated: (?P<kind>\w+) ?(?P<words>.*?) -->\n).*?(?P<tail><!-- end of generated -->)",
    re.DOTALL,
)


def current(page: Path) -> str:
    """Returns the text of a page with every generated block written anew."""

    def written(block: re.Match[str]) -> str:
        text = _WRITERS[block["kind"]](page, block["words"])
        return f"{block['head']}\n{text}\n\n{block['tail']}"

    return _BLOCK.sub(written, page.read_text(encoding="utf-8"))


def outdated() -> list[Path]:
    """Returns the pages whose generated blocks differ from what the program says now."""
    pages = sorted(DOCS.glob("*.md"))
    return [page for page in pages if page.read_text(encoding="utf-8") != current(page)]


if __name__ == "__main__":
    stale = outdated()
    if "--check" in sys.argv:
        sys.exit("".join(f"{page.name} is outdated: run python docs/generated\n" for page in stale))
    for page in stale:
        page.write_text(current(page), encoding="utf-8")
