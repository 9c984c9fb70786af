"""Lines of Python in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ENVIRON = {
    name: value for name, value in os.environ.items() if not name.startswith(("SMDP_", "SM_", "SMDATA"))
}


def python(
    code: str, *, path: Path | None = None, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    environ = {**ENVIRON, **variables, **({"PYTHONPATH": str(path)} if path else {})}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environ,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def passes(code: str, cwd: Path | None = None, **variables: str) -> None:
    done = python(code, cwd=cwd, **variables)
    assert done.returncode == 0, done.stderr
