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
    """Run main() in a process of its own; give how it ended, or nothing if it went well."""
    environ = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environ |= {
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "SMDP_TENSORFLOW_OPS": "native",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", "from smdp.tensorflow.trial import main; main()"],
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


def main() -> None:
    """Use every kind of op: with a callback, with a forwarded input, in a graph, and gradients of a tape."""
    import tensorflow as tf

    import smdp.tensorflow as sdp

    sdp.init()
    variable = tf.Variable([1.0, 2.0, 3.0])
    optimizer = tf.keras.optimizers.SGD(0.5)

    def step() -> tf.Tensor:
        with sdp.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(variable * variable)
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
        return sdp.allreduce(loss)

    graph = tf.function(step)
    losses = [float(step()), float(graph()), float(graph())]
    gathered = sdp.allgather(tf.constant([[4, 5]])).numpy().tolist()
    sdp.barrier()
    if losses != [14.0, 0.0, 0.0] or gathered != [[4, 5]] or variable.numpy().any():
        raise SystemExit(f"wrong results: {losses}, {gathered}, {variable.numpy()}")
    sdp.shutdown()
