"""The block `file PATH [from TEXT] [before TEXT]`: a file of the repository, or a part of it."""

from __future__ import annotations

from pathlib import Path

_LANGUAGES = {".py": "python", ".yaml": "yaml"}


def block(page: Path, words: str) -> str:
    """Returns the file as a block of code; its path counts from the folder of the page."""
    words, _, before = words.partition(" before ")
    name, _, start = words.partition(" from ")
    path = page.parent / name
    lines = path.read_text(encoding="utf-8").splitlines()
    first = _line_with(start, lines, path) if start else 0
    last = _line_with(before, lines, path) if before else len(lines)
    text = "\n".join(lines[first:last]).strip("\n")
    language = _LANGUAGES[path.suffix]
    # The file itself is tested, so the page's tests need not run it.
    head = f"<!-- not run: a part of {path.name} -->\n" if language == "python" else ""
    return f"{head}```{language}\n{text}\n```"


def _line_with(text: str, lines: list[str], path: Path) -> int:
    for number, line in enumerate(lines):
        if text in line:
            return number
    raise ValueError(f"{path.name} has no line with {text!r}")
