"""What the pages show: their blocks of code and their commands.

A block is run unless a comment stands right above it that says why not:

    <!-- not run: it needs two GPUs -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SETUPS = Path(__file__).parent / "setups"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("reference/*.md"))]

_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n+)?```(?P<language>python|pycon|console)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block of code, or of commands with what they print."""

    page: Path
    line: int
    language: str
    text: str
    reason: str | None  # not to run it

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path, *languages: str) -> list[Block]:
    """Give the blocks of a page in their order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page, text.count("\n", 0, found.start("text")), found["language"], found["text"], found["reason"]
        )
        for found in _BLOCK.finditer(text)
        if found["language"] in languages
    ]


@dataclass(frozen=True)
class Setup:
    """How the code of a page is run: what the first lines of its setup say."""

    path: Path | None
    needs: tuple[str, ...] = ()
    ranks: int = 1


def setup_of(page: Path) -> Setup:
    """Read `# needs: torch sklearn` and `# ranks: 2` from a page's setup, which it need not have."""
    path = SETUPS / f"{page.stem}.py"
    if not path.exists():
        return Setup(None)
    text = path.read_text(encoding="utf-8")
    needs = re.search(r"(?m)^# needs: (.+)$", text)
    ranks = re.search(r"(?m)^# ranks: (\d+)$", text)
    return Setup(path, tuple(needs[1].split()) if needs else (), int(ranks[1]) if ranks else 1)
