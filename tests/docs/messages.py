"""The messages that users of the sources get to see, with {} where a value stands.

Those are the texts of all exceptions, all texts that begin with the tag [smdp], and what is given to the few
functions that put the tag there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pages import ROOT

TAG = "[smdp]"
COMMON = ROOT / "containers" / "common"
# Constructors of exceptions that users see; others are caught within smdp.
_RAISED = re.compile(r"\b(?!KeyError|StopIteration|OSError|AssertionError)\w*Error$")
# What puts the tag, or the name of the program, before its text: its place among the arguments.
_SAYING = {"_say": 0, "fail": 0, "Failure": 3}
# The texts that these functions give are warnings.
_GIVING = {"cost", "_why_alone"}
# Neither failures nor warnings, or no text for users.
_SILENT = {"debug", "info", "startswith", "AssertionError"}


def python_messages() -> Iterator[tuple[str, str, str]]:
    """Give (place, exception or "text", message) of every message in Python."""
    for tree in (ROOT / "core" / "python", *sorted(ROOT.glob("plugins/*/python")), COMMON):
        for file in sorted(tree.rglob("*.py")):
            for line, kind, text in messages_of(file.read_text(encoding="utf-8")):
                yield f"{file.relative_to(ROOT)}:{line}", kind, text


def messages_of(source: str) -> Iterator[tuple[int, str, str]]:
    """Give (line, exception or "text", message) of every message of a Python file."""
    tree = ast.parse(source)
    # Docstrings and other texts that nobody reads.
    seen: set[ast.AST] = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):  # from the outside in: a text comes before its parts
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            place = 0 if _RAISED.search(name) else _SAYING.get(name, len(node.args))
            if name in _SILENT:
                seen.update(part for argument in node.args for part in ast.walk(argument))
            elif place < len(node.args):
                argument = node.args[place]
                texts = templates(argument)
                for text in texts:
                    yield node.lineno, name if _RAISED.search(name) else "text", text
                if texts != ["{}"]:  # else it may have texts deeper down
                    seen.update(ast.walk(argument))
        elif isinstance(node, ast.FunctionDef) and node.name in _GIVING:
            for part in ast.walk(node):
                if isinstance(part, ast.Return) and part.value is not None:
                    for text in templates(part.value):
                        yield part.lineno, "text", text
        elif isinstance(node, ast.expr) and node not in seen:
            for text in templates(node):
                if text.startswith(TAG):
                    yield node.lineno, "text", text
                    seen.update(ast.walk(node))


def templates(node: ast.expr) -> list[str]:
    """Give the texts that an expression may be, {} for what is not written there."""
    if isinstance(node, ast.Constant):
        return [re.sub(r"%[sdgr]", "{}", node.value)] if isinstance(node.value, str) else [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        return _joined(node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _joined([node.left, node.right])
    if isinstance(node, ast.BoolOp):
        return templates(node.values[-1])
    if isinstance(node, ast.IfExp):
        return [*templates(node.body), *templates(node.orelse)]
    return ["{}"]


def _joined(parts: list[ast.expr]) -> list[str]:
    whole = [""]
    for part in parts:
        whole = [before + text for before in whole for text in templates(part)]
    return whole


def cpp_messages() -> Iterator[tuple[str, str, str]]:
    """Give the same of every `throw Exception(...)`, of what ends an operation and of what is logged."""
    start = re.compile(
        r"(?:throw |make_exception_ptr\()\s*(?:smdp::)?(\w+Error|Error|InvalidArgument)\("
        r"|\b(log)\(LogLevel::k(?:Error|Warning),|\b(fprintf)\(stderr,"
    )
    for folder in (ROOT / "core" / "src", ROOT / "core" / "bindings", *sorted(ROOT.glob("plugins/*/csrc"))):
        for file in sorted(folder.rglob("*.[ch]*")):
            text = file.read_text(encoding="utf-8")
            for found in start.finditer(text):
                statement = text[found.end() : text.index(";\n", found.end())]
                parts = re.findall(r'"((?:[^"\\]|\\.)*)"|([^"\s][^"]*)', statement)
                message = "".join(
                    literal if literal or not code else _between(code) for literal, code in parts
                )
                line = text.count("\n", 0, found.start()) + 1
                name = found[1] or "text"
                yield (
                    f"{file.relative_to(ROOT)}:{line}",
                    name,
                    re.sub(r"%[sd]", "{}", message).replace("\\n", "\n"),
                )


def _between(code: str) -> str:
    return "{}" if re.search(r"\w", code) else ""


def shell_messages() -> Iterator[tuple[str, str, str]]:
    """Give the same of every `fail STATUS TEXT` and `say TEXT` of the images' scripts."""
    for file in sorted(COMMON.glob("*.sh")):
        for line, text in shell_texts(file):
            yield f"{file.relative_to(ROOT)}:{line}", "text", text


def shell_texts(file: Path) -> Iterator[tuple[int, str]]:
    """Give (line, text) of what a script says before it goes on or ends."""
    source = file.read_text(encoding="utf-8")
    for found in re.finditer(r"\b(?:fail \d+|say) (?=\")", source):
        yield source.count("\n", 0, found.start()) + 1, _words(source[found.end() :])


def _words(source: str) -> str:
    """Read double-quoted words up to the end of their command."""
    text, at, is_quoted = "", 0, False
    while at < len(source):
        if source.startswith("$(", at):
            at, text = _end_of_command(source, at + 2), text + "{}"
        elif value := re.match(r"\$(?:\{[^}]*\}|\w+|[*@#?])", source[at:]):
            at, text = at + value.end(), text + "{}"
        elif source[at] == "\\":
            text += "" if source[at + 1] == "\n" else source[at + 1]
            at += 2
        elif source[at] == '"':
            is_quoted, at = not is_quoted, at + 1
        elif not is_quoted and source[at] in ";|&\n":
            break
        else:
            text, at = text + source[at], at + 1
    return re.sub(r"\s+", " ", text).strip()


def _end_of_command(source: str, at: int) -> int:
    """Give the place behind a `$(...)`."""
    depth = 1
    while depth:
        depth += {"(": 1, ")": -1}.get(source[at], 0)
        at += 1
    return at
