"""Whether the op library works with a TensorFlow that nobody has tried.

How TensorFlow hands a kernel its callback is not part of its C API, so that only a run can tell; and where it
is not as expected the process dies. Hence one of its own, alone in its world.
"""

from __future__ import annotations

import os
import subprocess
import sys

_TIMEOUT_S = 180
# All else might make it a rank of a job.
_KEPT = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD")


def why_it_fails() -> str:
    """Runs trial_program in a process of its own; returns how it ended, or nothing if it went well."""
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
        return f"tried in a process of its own, it did not come to its end: {error}"
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return f"tried in a process of its own, it ended with exit code {done.returncode}: {last}"
