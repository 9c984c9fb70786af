"""The page "Errors" has cause and cure for every message that the sources raise, and every kind of error."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from messages import cpp_messages, python_messages
from pages import DOCS, ROOT

PAGE = (DOCS / "errors.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.split("(by-message)=")[1].splitlines()
    if line.startswith("| ") and not line.startswith("| Message")
]


def pattern(text: str) -> re.Pattern[str]:
    """Read a message of the page: ... stands for anything; one with the tag is all of the message."""
    if text.startswith("[smdp]"):
        return re.compile(re.escape(text).replace(r"\.\.\.", "X") + "$")
    return re.compile(".*".join(re.escape(part) for part in text.split("...")), re.DOTALL)


PATTERNS = [pattern(text) for row in ROWS for text in re.findall(r"`([^`]+)`", row[0])]


def test_every_message_is_on_the_page() -> None:
    found = [*python_messages(), *cpp_messages()]
    assert len(found) > 400
    missing = [
        f"{place} {name}: {message}"
        for place, name, message in found
        # Text that is put together elsewhere begins with {}; what follows must still be findable.
        if re.search(r"[a-z]{3}", message.replace("[smdp]", ""))
        and not any(one.search(message.replace("{}", "X")) for one in PATTERNS)
    ]
    assert missing == []


def test_every_message_of_the_page_has_cause_and_cure() -> None:
    assert len(PATTERNS) > 150
    assert [
        row for row in ROWS if len(row) != 3 or not row[1] or (not row[2] and "interrupted" not in row[0])
    ] == []


def test_every_kind_of_the_core_is_on_the_page() -> None:
    header = (ROOT / "core" / "include" / "smdp" / "error.h").read_text(encoding="utf-8")
    kinds = re.findall(r"(k\w+) = (\d+),", header)
    assert len(kinds) == 6
    assert [kind for kind, number in kinds if f"| `{kind}` | {number} |" not in PAGE] == []
    classes = re.findall(r"class SMDP_API (\w+) : public", header)
    assert [name for name in classes if name != "Error" and f"`{name}`" not in PAGE] == []


def test_a_message_that_is_nowhere_is_missed() -> None:
    assert not any(one.search("[smdp] the quick brown fox jumps") for one in PATTERNS)
