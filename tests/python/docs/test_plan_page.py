"""The page "Which layout?": its commands print what it shows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")


def test_commands_print_what_the_page_shows() -> None:
    blocks = re.findall(r"```console\n\$ smdp (.*?)\n(.*?)\n```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    for command, shown in blocks:
        done = subprocess.run(
            [sys.executable, "-m", "smdp", *shlex.split(command)],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=ROOT,
        )
        printed = "\n".join(line.rstrip() for line in done.stdout.splitlines()).strip("\n")
        assert printed == shown
