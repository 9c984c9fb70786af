"""The block `variables`: the table of environment variables, from the module that parses them."""

from __future__ import annotations

from pathlib import Path

from smdp import config


def table(page: Path, words: str) -> str:
    """Returns a row for each variable: its name, default and meaning."""
    rows = [
        f"| `{variable.name}` | {variable.default or 'none'} | {variable.meaning} |"
        for variable in config.VARIABLES
    ]
    return "\n".join(["| Variable | Default | Meaning |", "|---|---|---|", *rows])
