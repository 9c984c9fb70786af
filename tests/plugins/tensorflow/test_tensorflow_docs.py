"""The examples of the documentation run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

PAGE = Path(__file__).resolve().parents[3] / "docs" / "tensorflow.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_example(index: int, tmp_path: Path) -> None:
    if "DistributedOptimizer" in EXAMPLES[index] and not hasattr(tf.keras, "ops"):
        pytest.skip("needs Keras 3")
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[index], encoding="utf-8")
    command = [sys.executable, "-m", "smdp", "run", "-n", "2", str(script)]
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    subprocess.run(command, check=True, timeout=100, cwd=tmp_path, env=variables)


def test_examples_are_found() -> None:
    assert len(EXAMPLES) == 2
