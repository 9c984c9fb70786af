"""Wordings that the code, its messages and the documentation avoid, each with a better one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[3]
SKIPPED = {"_build", "__pycache__", "node_modules", "build"}
SUFFIXES = {".py", ".pyi", ".h", ".cpp", ".txt", ".cmake", ".sh", ".sbatch", ".yaml", ".toml", ".md"}

# Whitespace between two words of a text that may continue on the next line of a comment or string.
GAP = r'(?:[ \t]+|[ \t]*["\')]*\n[ \t]*(?:f?["\']|#+|/{2,3}|\*|>)?[ \t]*)'


class Rule(NamedTuple):
    """A wording to avoid. A match is fine if its group "fine" has matched."""

    pattern: re.Pattern[str]
    instead: str


def rule(text: str, instead: str) -> Rule:
    """Returns a rule; spaces in the text stand for any whitespace, also at the end of a line."""
    return Rule(re.compile(text.replace(" ", GAP), re.IGNORECASE), instead)


# What follows "of torch's" if a noun is missing.
NO_NOUN = (
    r"(?=[.,;:)\]]|\s*$|\s+(?:kind|that|which|and|or|is|are|has|have|in|on|for|to|with|at|as|from|may|can)\b)"
)
NAMES = "torch|smdp|SMP|SMDDP|Amazon|Horovod|Python|NumPy|transformers|Lightning|Accelerate|TensorFlow"
COMPARED = "longer|more|less|better|worse|faster|slower|larger|smaller|greater|earlier|later|different"
STEMS = (
    "initial|serial|optim|normal|recogn|synchron|parallel|organ|real|minim|maxim|summar|material|util|final"
    "|special|general|emphas|quant|vector|token|custom|visual|local|author|categor|priorit|stabil|standard"
    "|random|regular|discret"
)
BRITISH = (
    "centre[ds]?|artefacts?|misspelt|spelt|modelling|modelled|labelled|labelling|whilst|amongst|licence[ds]?"
    "|defence|grey|fulfil"
)
RULES = [
    rule(
        rf"(?P<fine>\bthere )?\b(?:is|are|was|were) no (?!(?:{COMPARED})\b)\w+",
        '"is not a ...", "has no ..."',
    ),
    rule(r"\b(?:of )?one'?s own\b", '"its own", "their own"'),
    rule(r"\b(?:another|other) one than\b|\banother than\b", '"differs from", "was replaced"'),
    rule(rf"(?P<fine>\binstead )?\bof (?:{NAMES})'s{NO_NOUN}", '"torch\'s DDP", "a torch optimizer"'),
    rule(r"\b(?:nobody|everybody|somebody|whoever)\b", "the rank, process, caller or user that is meant"),
    rule(r"\bwhat cannot be\b(?! \w)", '"an internal invariant was violated; this is a bug in smdp"'),
    rule(r"(?<![A-Za-z])(?:behavi|col|fav|hon|neighb|lab)our", '"...or": behavior, color, neighbor'),
    rule(rf"(?<![A-Za-z])(?:de|re|un)?(?:{STEMS})is(?:e[drs]?|ers|ing|able|ations?)(?![A-Za-z])", '"-ize"'),
    rule(r"(?<![A-Za-z])(?:analyse[dr]?|analysing|paralyse[ds]?)(?![A-Za-z])", '"analyze"'),
    rule(rf"(?<![A-Za-z_])(?:{BRITISH})(?![A-Za-z])", "the American spelling"),
]

# First words of docstrings: the third person says what a function does. Texts of --help stay imperative.
IMPERATIVE = re.compile(
    r'\s*"*(Accumulate|Add|Allocate|Allow|Answer|Ask|Be|Begin|Bring|Build|Carry|Check|Compare|Copy|Cut|Describe'
    r"|Divide|Do|Draw|End|Enqueue|Fail|Fetch|Find|Forget|Freeze|Gather|Give|Go|Hand|Have|Hear|Introduce|Join|Keep"
    r"|Lay|Leave|Let|Look|Make|Mark|Measure|Multiply|Note|Offer|Parse|Pickle|Predict|Print|Prove|Put|Raise|Read"
    r"|Receive|Refuse|Register|Remember|Remove|Replace|Return|Run|Say|Send|Serve|Show|Start|Stay|Stop|Switch|Take"
    r"|Teach|Tell|Turn|Undo|Wait|Warn|Watch|Wrap|Write)[ :](?!of\b)"
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
HELP_TEXTS = "core/python/smdp/cli/commands/"


def findings(name: str, text: str) -> Iterator[str]:
    """Yields one line for each wording to avoid: where it is, what it is, and what to write."""
    for pattern, instead in RULES:
        for found in pattern.finditer(text):
            if not found.groupdict().get("fine"):
                words = " ".join(found.group().split())
                yield f"{name}:{_line(text, found.start())}: {words!r}: write {instead}"
    for line, description in _descriptions(name, text):
        if (verb := IMPERATIVE.match(description)) is not None:
            yield f"{name}:{line}: begins with {verb[1]!r}: write what it does, {_third_person(verb[1])!r}"


def _descriptions(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yields the lines and texts of docstrings in Python, and of /// comments in C++."""
    if name.endswith((".py", ".pyi")) and not name.startswith(HELP_TEXTS):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, _DOCUMENTED) and node.body:
                first = node.body[0]
                if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                    yield first.lineno, str(first.value.value)
    elif name.endswith((".h", ".cpp")):
        for found in re.finditer(r"(?<!///)(?:^|\n)[ \t]*///[ \t]*(.+)", text):
            before = text[: found.start()].rpartition("\n")[2]
            if not before.lstrip().startswith("///"):
                yield _line(text, found.start(1)), found[1]


def _third_person(verb: str) -> str:
    known = {"Give": "Returns", "Tell": "Returns whether", "Say": "Returns", "Have": "Has", "Be": "Is"}
    ending = "es" if verb.endswith(("s", "sh", "ch", "x", "o")) else "s"
    return known.get(verb, verb + ending)


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _files() -> Iterator[Path]:
    yield from sorted(ROOT.glob("*.md"))
    yield from sorted((ROOT / "docs").glob("*.md"))
    for folder in ("core", "plugins", "containers"):
        for path in sorted((ROOT / folder).rglob("*")):
            is_text = path.suffix in SUFFIXES or path.name.startswith("Dockerfile")
            if is_text and path.is_file() and SKIPPED.isdisjoint(path.relative_to(ROOT).parts):
                yield path


def test_wording() -> None:
    found = [
        line
        for path in _files()
        for line in findings(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]
    assert found == [], "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.py", '"""Give the rank."""', "a.py:1: begins with 'Give': write what it does, 'Returns'"),
        ("a.py", 'def f():\n    """Tell whether."""', "a.py:2: begins with 'Tell'"),
        ("a.pyi", 'class C:\n    """Wait for all."""', "write what it does, 'Waits'"),
        ("a.h", "int a;\n/// Let it run.\nint b;", "a.h:2: begins with 'Let'"),
        ("a.py", 'raise ValueError("x is"\n    " no number")', "a.py:1: 'is\" \" no number'"),
        ("a.cpp", "// It is\n// no tensor.", "a.cpp:1: 'is // no tensor'"),
        ("a.md", "It is no bug.", "write \"is not a ...\""),
        ("a.md", "a group of one's own", "a.md:1: \"of one's own\": write \"its own\""),
        ("a.py", "# another one than before", "differs from"),
        ("a.py", "# a function of torch's.", "of torch's"),
        ("a.py", "# an optimizer of torch's kind", "of torch's"),
        ("a.md", "\nwhich nobody\nwould average", "a.md:2: 'nobody'"),
        ("a.py", "# smdp met what cannot be, a bug", "internal invariant"),
        ("a.md", "its behaviour", "behavior"),
        ("a.py", "_NEIGHBOURS = 1  # neighbours", "neighbor"),
        ("a.py", "is_initialised = True", "-ize"),
        ("a.md", "deserialisation and optimisers", "-ize"),
        ("a.md", "to analyse it", "analyze"),
    ],
)  # fmt: skip
def test_a_bad_text_is_found(name: str, text: str, expected: str) -> None:
    assert expected in "\n".join(findings(name, text))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", '"""Returns the rank."""'),
        ("a.py", 'def f():\n    """Set of ranks."""'),
        ("a.py", 'def f():\n    """Read-only view."""'),
        (f"{HELP_TEXTS}run.py", 'def f():\n    """Start ranks on this machine."""'),
        ("a.h", "/// Returns the rank, or lets\n/// Let the caller decide.\nint b;"),
        ("a.md", "There is no limit. There are no\nothers. It is no longer there, and is no more than 5."),
        ("a.py", "# uses smdp's class instead of torch's."),
        ("a.md", "the buckets of torch's reducer, and the analyses of a precise exercise"),
        ("a.py", "# The colors of the optimizer's behavior, revised and advised"),
    ],
)
def test_a_good_text_is_not_found(name: str, text: str) -> None:
    assert list(findings(name, text)) == []
