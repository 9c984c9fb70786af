"""The messages of all exceptions that the sources raise, with {} where a value stands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pages import ROOT

# Constructors of exceptions that users see; others are caught within smdp.
_RAISED = re.compile(r"\b(SmdpError|TimeoutError|PeerLostError|MismatchError|ConfigError|ClosedError|Error)$")
_BUILT_IN = {
    "ValueError",
    "TypeError",
    "RuntimeError",
    "ImportError",
    "NotImplementedError",
    "FileNotFoundError",
}


def python_messages() -> Iterator[tuple[str, str, str]]:
    """Give (place, exception, message) of every `raise Exception("...")`."""
    for tree in (ROOT / "core" / "python", *sorted(ROOT.glob("plugins/*/python"))):
        for file in sorted(tree.rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args):
                    continue
                name = ast.unparse(node.exc.func).rpartition(".")[2]
                if name in _BUILT_IN or _RAISED.search(name):
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", name, template(node.exc.args[0])


def template(node: ast.expr) -> str:
    """Give the text of an expression, {} for what is not written there."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    if isinstance(node, ast.IfExp):
        return template(node.body)
    return "{}"


def cpp_messages() -> Iterator[tuple[str, str, str]]:
    """Give the same of every `throw Exception(...)` and every exception that an operation ends with."""
    start = re.compile(r"(?:throw |make_exception_ptr\()\s*(?:smdp::)?(\w+Error|Error|InvalidArgument)\(")
    for folder in ("core/src", "core/bindings"):
        for file in sorted((ROOT / folder).rglob("*.[ch]*")):
            text = file.read_text(encoding="utf-8")
            for found in start.finditer(text):
                statement = text[found.end() : text.index(";\n", found.end())]
                parts = re.findall(r'"((?:[^"\\]|\\.)*)"|([^"\s][^"]*)', statement)
                message = "".join(
                    literal if literal or not code else _between(code) for literal, code in parts
                )
                line = text.count("\n", 0, found.start()) + 1
                yield f"{file.relative_to(ROOT)}:{line}", found[1], message.replace("\\n", "\n")


def _between(code: str) -> str:
    return "{}" if re.search(r"\w", code) else ""
