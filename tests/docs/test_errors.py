"""The page "Errors" has cause and cure for every message that the sources raise, and every kind of error."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from messages import COMMON, cpp_messages, messages_of, python_messages, shell_messages, shell_texts
from pages import DOCS, ROOT

PAGE = (DOCS / "errors.md").read_text(encoding="utf-8")
# They say what happens, so there is nothing to cure.
PROGRESS = ("{} runs {} of {}", "[smdp] the base image has {}: kept, and packages are installed beside it")


def rows_of(text: str) -> list[list[str]]:
    """Give the cells of all rows of tables, without those that head them."""
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith(("| Message", "| Exit code"))
    ]


ROWS = rows_of(PAGE.split("(by-message)=")[1])


def pattern(text: str) -> re.Pattern[str]:
    """Read a message of the page: ... stands for anything; one with the tag is all of the message."""
    if text.startswith("[smdp]"):
        return re.compile(re.escape(text).replace(r"\.\.\.", "X") + "$")
    return re.compile(".*".join(re.escape(part) for part in text.split("...")), re.DOTALL)


def patterns(rows: list[list[str]]) -> list[re.Pattern[str]]:
    return [pattern(text) for row in rows for text in re.findall(r"`([^`]+)`", row[0])]


PATTERNS = patterns(ROWS)
# Arguments are refused in few forms ("... is ...; allowed: ..."); other messages have rows of their own.
FORMS = {one.pattern for one in patterns(rows_of(PAGE.split("### Wrong arguments")[1].split("\n### ")[0]))}
ARGUMENT_ERRORS = {"ValueError", "TypeError", "InvalidArgument"}


def is_on_the_page(kind: str, message: str) -> bool:
    return any(
        one.search(message.replace("{}", "X"))
        for one in PATTERNS
        if kind in ARGUMENT_ERRORS or one.pattern not in FORMS
    )


def test_every_message_is_on_the_page() -> None:
    found = [*python_messages(), *cpp_messages(), *shell_messages()]
    assert len(found) > 650
    missing = [
        f"{place} {name}: {message}"
        for place, name, message in found
        # Text that is put together elsewhere begins with {}; what follows must still be findable.
        if re.search(r"[a-z]{3}", message.replace("[smdp]", ""))
        and message not in PROGRESS
        and not is_on_the_page(name, message)
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
    assert not is_on_the_page("text", "[smdp] the quick brown fox jumps")
    assert not is_on_the_page("text", "[smdp] foxes are quick; allowed: dogs")  # a form of arguments only


def test_every_exit_code_is_on_the_page() -> None:
    codes = {row[0] for row in rows_of(PAGE.split("## Exit codes\n")[1].split("\n## ")[0])}
    scripts = "".join(file.read_text(encoding="utf-8") for file in sorted(COMMON.glob("*.sh")))
    said = {"0", "1", "2", "74", "75", "126", "128 + n", *re.findall(r"\bfail (\d+) ", scripts)}
    assert said == codes


def test_what_is_no_raise_is_found_too() -> None:
    source = """
def cost():
    return f"the others of {n} are idle"
def check(a):
    "[smdp] is no message in a docstring, were it to begin so."
    if a:
        return f"[smdp] {a} has" + (" one" if b else " two")
    log.warning("[smdp] %s of %d", a, b)
    log.debug("[smdp] only for debugging")
    raise CommandError(f"no such thing: {a}")
"""
    assert sorted(text for _, _, text in messages_of(source)) == [
        "[smdp] {} has one",
        "[smdp] {} has two",
        "[smdp] {} of {}",
        "no such thing: {}",
        "the others of {} are idle",
    ]


def test_what_a_script_says_is_found(tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text(
        """
  *.py) fail 127 "$1 is a \\`script\\` of $(id -un "${user:-no one}")," \\
    "${2##*/}." ;;
((1)) || say "warning: $(("$kib" / 2)) MiB" && exit 1
""",
        encoding="utf-8",
    )
    assert list(shell_texts(script)) == [(2, "{} is a `script` of {}, {}."), (4, "warning: {} MiB")]
