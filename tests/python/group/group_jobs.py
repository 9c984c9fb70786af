"""Where the ranks of a job are, and what they said."""

from __future__ import annotations

import re

ONE_HOST = [0, 0, 0]
THREE_HOSTS = [0, 1, 2]


def seconds(output: str) -> float:
    found = re.search(r"after ([0-9.]+) s", output)
    assert found, output
    return float(found[1])
