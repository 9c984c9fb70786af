"""Doxygen's input filter: the headers' plain comments become those that it reads.

    python3 doxygen_comments.py HEADER

A comment above a declaration becomes ///, one behind it ///<, the first one what is said of the file. Lines
stay where they are, so that Doxygen's warnings name the right ones.
"""

import re
import sys

_BEHIND = re.compile(r"^(\s*[^/\s}#][^/]*?[;,{(\w]\s+)//(?=\s)")


def converted(text: str) -> str:
    """Give the header as Doxygen reads it."""
    lines = text.splitlines()
    goes_on = False  # a comment behind a declaration
    for at, line in enumerate(lines):
        is_comment = line.lstrip().startswith("//")
        if line == "#pragma once":
            lines[at] = r"/// \file"  # ends the comment that a header begins with
        elif is_comment:
            lines[at] = line.replace("//", "///<" if goes_on else "///", 1)
        else:
            lines[at], count = _BEHIND.subn(r"\1///<", line)
            goes_on = bool(count)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as header:
        sys.stdout.write(converted(header.read()))
