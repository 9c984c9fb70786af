"""The texts of the sources, from which exceptions, warnings and logs are made."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pages import ROOT

_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')


def texts() -> Iterator[str]:
    """Yields the text of every statement that has one, Python's and C++'s."""
    for tree in (ROOT / "core", *sorted(ROOT.glob("plugins/*"))):
        for file in sorted(tree.rglob("*.py")):
            yield from python_texts(file.read_text(encoding="utf-8"))
        for file in sorted([*tree.rglob("*.h"), *tree.rglob("*.cpp")]):
            yield from cpp_texts(file.read_text(encoding="utf-8"))


def python_texts(source: str) -> Iterator[str]:
    """Yields the string literals of every simple statement, joined; docstrings are left out."""
    for node in ast.walk(ast.parse(source)):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and not is_docstring:
            literals = [part for part in ast.walk(node) if isinstance(part, ast.Constant)]
            words = [part.value for part in literals if isinstance(part.value, str)]
            if words:
                yield " ".join(words)


def cpp_texts(source: str) -> Iterator[str]:
    """Yields the string literals of every statement, joined."""
    code = re.sub(r"(?m)^\s*//.*$", "", source)
    for statement in re.split(r";\s*\n", code):
        words = _LITERAL.findall(statement)
        if words:
            yield " ".join(words)
