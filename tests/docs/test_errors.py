"""The page "Errors" has every class of error and every exit code; the messages that pages show exist."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from messages import cpp_texts, python_texts, texts
from pages import DOCS, ROOT

PAGE = (DOCS / "errors.md").read_text(encoding="utf-8")
# A sentence may be reworded without an edit of the page, as long as most of its words stay.
SHARE = 0.6


def rows_of(text: str, head: str) -> list[list[str]]:
    """Returns the cells of all rows of the tables in the text whose first column has this head."""
    rows = re.findall(rf"(?m)^\| {head} \|.*\n\|[-|]+\|\n((?:\|.*\|\n)+)", text)
    lines = [line for one in rows for line in one.splitlines()]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


ENTRIES = rows_of(PAGE, "You see")


def words_of(text: str) -> set[str]:
    return set(re.findall(r"[a-z_]{3,}", text.lower()))


@cache
def words_of_sources() -> list[set[str]]:
    return [words_of(text) for text in texts()]


def is_in_the_sources(message: str) -> bool:
    wanted = words_of(message)
    return any(len(wanted & found) >= SHARE * len(wanted) for found in words_of_sources())


def test_every_class_of_error_is_on_the_page() -> None:
    sources = "\n".join(
        file.read_text(encoding="utf-8")
        for tree in (ROOT / "core" / "python", *ROOT.glob("plugins/*/python"))
        for file in tree.rglob("*.py")
    )
    classes = re.findall(r"(?m)^class (\w+)\((?:\w+, )*(?:SmdpError|RuntimeError)\b", sources)
    public = {name for name in classes if name.endswith("Error")}
    assert {"SmdpError", "PeerLostError", "TrainingError"} <= public
    assert [name for name in sorted(public) if f"`{name}`" not in PAGE] == []


def test_every_kind_of_the_core_is_on_the_page() -> None:
    header = (ROOT / "core" / "include" / "smdp" / "error.h").read_text(encoding="utf-8")
    kinds = re.findall(r"(k\w+) = (\d+),", header)
    assert len(kinds) == 6
    assert [kind for kind, number in kinds if f"(`{kind}`, {number})" not in PAGE] == []
    classes = re.findall(r"class SMDP_API (\w+) : public", header)
    assert [name for name in classes if name != "Error" and f"`{name}`" not in PAGE] == []


def test_every_entry_has_cause_and_cure() -> None:
    assert 25 <= len(ENTRIES) <= 45
    assert [row for row in ENTRIES if len(row) != 3 or not all(row)] == []
    assert [row[0] for row in ENTRIES if not re.search(r"`[^`]+`", row[0])] == []


def test_every_message_of_the_pages_is_in_the_sources() -> None:
    assert len(words_of_sources()) > 4000
    others = [(DOCS / name).read_text(encoding="utf-8") for name in ("launchers.md", "kubernetes.md")]
    entries = [*ENTRIES, *(row for page in others for row in rows_of(page, "You see"))]
    messages = [text for row in entries for text in re.findall(r"`([^`]+)`", row[0]) if " " in text]
    assert len(entries) > len(ENTRIES) and len(messages) >= len(entries)
    assert [message for message in messages if not is_in_the_sources(message)] == []


def test_a_message_that_is_nowhere_is_missed() -> None:
    assert not is_in_the_sources("the quick brown fox jumps over dogs")


def test_every_exit_code_is_on_the_page() -> None:
    codes = {code for row in rows_of(PAGE, "Exit code") for code in row[0].split(", ")}
    scripts = (ROOT / "containers" / "common").glob("*.sh")
    failures = [code for file in scripts for code in re.findall(r"\bfail (\d+) ", file.read_text("utf-8"))]
    assert failures
    assert codes == {"1", "2", "74", "75", "126", "128 + n", *failures}


def test_texts_are_found() -> None:
    python = """
def check(a):
    "Not a message."
    if a:
        raise ValueError(f"{a} has" + (" one" if b else " two"))
"""
    assert [words_of(text) for text in python_texts(python)] == [{"has", "one", "two"}]
    cpp = '// "Not a message."\nif (a) {\n  throw Error(p + "rank " +\n              name + " is gone");\n}\n'
    assert [text.split() for text in cpp_texts(cpp)] == [["rank", "is", "gone"]]
