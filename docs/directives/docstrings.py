"""Docstrings as MyST: text as it stands, sections of Google's style as fields."""

from __future__ import annotations

import re

import griffe

_KIND = griffe.DocstringSectionKind


def markdown(found: griffe.Object, names: dict[str, str]) -> str:
    """Give the docstring of an object; nothing if it has none."""
    if found.docstring is None:
        return ""
    parts: list[str] = []
    fields: list[str] = []
    for section in found.docstring.parse("google", warnings=False, returns_named_value=False):
        if section.kind is _KIND.text:
            parts.append(examples_fenced(section.value))
        elif section.kind is _KIND.parameters:
            fields += [field(f"param {one.name}", one.description) for one in section.value]
        elif section.kind in (_KIND.attributes, _KIND.other_parameters):
            fields += [field(f"ivar {one.name}", one.description) for one in section.value]
        elif section.kind is _KIND.raises:
            fields += [
                field(f"raises {error(one.annotation, names)}", one.description) for one in section.value
            ]
        elif section.kind is _KIND.warns:
            fields += [field(f"warns {one.annotation}", one.description) for one in section.value]
        elif section.kind in (_KIND.returns, _KIND.yields):
            fields += [field(section.kind.value, one.description) for one in section.value]
        elif section.kind is _KIND.examples:
            parts += [fenced(text) if kind is _KIND.examples else text for kind, text in section.value]
        elif section.kind is _KIND.admonition:
            is_example = section.value.kind == "example"
            title = section.title or section.value.kind
            text = section.value.description
            parts.append(fenced(text) if is_example else f"**{title}**: {text}")
        else:
            raise NotImplementedError(f"{found.path}: a docstring's section {section.kind} has no rendering")
    # Fields come last, in one list.
    return "\n\n".join([*parts, "\n".join(fields)] if fields else parts)


def field(name: str, text: str) -> str:
    """Write one field; its text may have several paragraphs."""
    lines = text.strip().splitlines()
    return "\n".join(
        [f":{name}: {lines[0] if lines else ''}", *(f"    {line}".rstrip() for line in lines[1:])]
    )


def error(annotation: object, names: dict[str, str]) -> str:
    """Give the public name of an exception that a docstring names in short."""
    short = str(annotation)
    return next((public for public in names.values() if public.rpartition(".")[2] == short), short)


def examples_fenced(text: str) -> str:
    """Put a fence around interactive examples and indented code; Markdown would run the former together."""
    return re.sub(r"(?m)^(?:>>>.*\n?)(?:.+\n?)*", lambda match: fenced(match[0]), text)


def fenced(text: str) -> str:
    """Put text into a fence, without the comments that only doctest reads."""
    code = re.sub(r"[ ]*# doctest:.*", "", text.strip())
    return f"```pycon\n{code}\n```\n"
