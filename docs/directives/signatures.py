"""Signatures and annotations in which smdp's types carry the names under which they are documented."""

from __future__ import annotations

from typing import TypeAlias

import griffe

Names: TypeAlias = dict[str, str]

_KINDS = griffe.ParameterKind


def annotation(expression: str | griffe.Expr, names: Names) -> str:
    """Write an annotation; types that have no page keep the name that the source has."""
    if isinstance(expression, str):
        return expression
    parts = []
    for part in expression.iterate(flat=True):
        path = getattr(part, "canonical_path", None)
        parts.append(part if isinstance(part, str) else names.get(public(path), str(part)))
    return "".join(parts)


def public(path: str) -> str:
    """Follow a path to where the object is defined."""
    from directives.python_api import package

    if not path.startswith("smdp."):
        return path
    try:
        found = package()[path.removeprefix("smdp.")]
        return str(found.final_target.path if found.is_alias else found.path)
    except (KeyError, griffe.AliasResolutionError):
        return path


def signature(found: griffe.Object, names: Names) -> str:
    """Write the arguments of a function, or of a class, and what a function returns."""
    texts: list[str] = []
    previous = None
    parameters = [
        one for at, one in enumerate(found.parameters) if not (at == 0 and one.name in ("self", "cls"))
    ]
    for parameter in parameters:
        if previous is _KINDS.positional_only and parameter.kind is not _KINDS.positional_only:
            texts.append("/")
        has_star = any(text.startswith("*") for text in texts)
        if parameter.kind is _KINDS.keyword_only and not has_star:
            texts.append("*")
        previous = parameter.kind
        texts.append(_one(parameter, names))
    returns = getattr(found, "returns", None)
    result = f" -> {annotation(returns, names)}" if returns is not None and found.is_function else ""
    return f"({', '.join(texts)}){result}"


def _one(parameter: griffe.Parameter, names: Names) -> str:
    stars = {_KINDS.var_positional: "*", _KINDS.var_keyword: "**"}.get(parameter.kind, "")
    text = stars + parameter.name
    if parameter.annotation is not None:
        text += f": {annotation(parameter.annotation, names)}"
    if parameter.default is not None and not stars:
        text += f" = {parameter.default}" if parameter.annotation is not None else f"={parameter.default}"
    return text
