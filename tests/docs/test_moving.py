"""What the page of TensorFlow says to change makes scripts for other libraries run, without smdp.compat."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pages import DOCS, ROOT

SCRIPTS = ROOT / "tests" / "plugins" / "compat" / "scripts"


def changes_of(section: str) -> list[tuple[str, str | None]]:
    """Give the lines of a section's diffs that go, each with what comes in its place."""
    page = (DOCS / "tensorflow.md").read_text(encoding="utf-8")
    text = re.split(r"(?m)^## ", page.split(f"## {section}\n")[1])[0]
    changes: list[tuple[str, str | None]] = []
    for diff in re.findall(r"(?ms)^```diff\n(.*?)^```$", text):
        for line in diff.splitlines():
            if line.startswith("- "):
                changes.append((line[2:].strip(), None))
            elif line.startswith("+ "):
                changes[-1] = (changes[-1][0], line[2:].strip())
    return changes


def moved(script: str, changes: list[tuple[str, str | None]]) -> tuple[str, set[str]]:
    """Give a script's text with the changes made, and which of them were."""
    replacements = dict(changes)
    lines: list[str] = []
    made: set[str] = set()
    for line in (SCRIPTS / script).read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if text in replacements:
            made.add(text)
            new = replacements[text]
            if new is not None:
                lines.append(line.replace(text, new))
        else:
            lines.append(line)
    return "\n".join(lines) + "\n", made


@pytest.mark.framework
@pytest.mark.parametrize(
    ("section", "scripts"),
    [
        ("Moving from Horovod", ["horovod_tensorflow.py", "horovod_keras.py"]),
        ("Moving from SMDDP", ["smddp_tensorflow.py"]),
    ],
    ids=["Horovod", "SMDDP"],
)
@pytest.mark.timeout(300)
def test_changes(section: str, scripts: list[str], tmp_path: Path) -> None:
    if find_spec("tensorflow") is None or find_spec("sklearn") is None:
        pytest.skip("needs TensorFlow and scikit-learn")
    changes = changes_of(section)
    all_made: set[str] = set()
    for script in scripts:
        text, made = moved(script, changes)
        all_made |= made
        path = tmp_path / script
        path.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "smdp", "run", "-n", "2", str(path)],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=140,
        )
        assert done.returncode == 0, done.stdout
        assert re.search(r"accuracy (0\.[89]\d*|1\.0+) on 2 ranks", done.stdout), done.stdout
    assert all_made == {old for old, _ in changes}, "a change of the page is in no script"
