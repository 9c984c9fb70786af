"""Tests whether the op library works with a TensorFlow release that has not been tested.

The type of the callback that TensorFlow passes to a kernel is not part of its C API, so only a run can tell.
If the type is not as expected, the process crashes, so the test runs in a separate process with its own
world.
"""

from __future__ import annotations

import os
import subprocess
import sys

_TIMEOUT_S = 180
# Other variables might make the process a rank of a job.
_KEPT = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD")


def why_it_fails() -> str:
    """Runs trial_program in a separate process. Returns how it failed, or an empty string if it succeeded."""
    environ = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environ |= {
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "SMDP_TENSORFLOW_OPS": "native",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", "from smdp.tensorflow.trial_program import main; main()"],
            env=environ,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"a test in a separate process did not finish: {error}"
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return f"a test in a separate process ended with exit code {done.returncode}: {last}"
