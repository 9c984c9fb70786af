"""The ops in Python, for a TensorFlow that does not take the op library, pass the same checks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorflow_spawn import run
from test_tensorflow_collectives import (
    check_gradients,
    check_groups_and_forms,
    check_movements,
    check_reductions,
)
from test_tensorflow_tape import (
    check_compression,
    check_failing_op,
    check_order_through_calls,
    check_other_lists,
    check_shapes_of_use,
    check_training,
)

from smdp.tensorflow.library import is_keras_3

PYTHON = {"SMDP_TENSORFLOW_OPS": "python"}


# test_tensorflow_modes.py makes every call with the ops in Python; the slow ones say more of the same calls.
@pytest.mark.parametrize(
    "check",
    [
        check_order_through_calls,
        check_other_lists,
        check_shapes_of_use,
        check_training,
        *(
            pytest.param(check, marks=pytest.mark.slow)
            for check in (check_gradients, check_groups_and_forms, check_movements, check_reductions)
        ),
    ],
)
def test_same(check: Callable[[], None]) -> None:
    run(check, 2, env=PYTHON)


@pytest.mark.slow
def test_compression() -> None:
    run(check_compression, 2, env=PYTHON, hosts=[0, 1])


def test_failing_op() -> None:
    run(check_failing_op, 2, env=PYTHON, exits={1: 1})


@pytest.mark.slow
@pytest.mark.skipif(not is_keras_3, reason="needs Keras 3")
def test_fit() -> None:
    from test_tensorflow_keras import check_fit

    run(check_fit, 2, env=PYTHON)


REFUSED = """
import warnings
import tensorflow as tf

def refuse(path):
    raise tf.errors.NotFoundError(None, None, "undefined symbol: TF_Gone")

tf.load_op_library = refuse
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import smdp.tensorflow as sdp
(text,) = [str(w.message) for w in caught if "[smdp]" in str(w.message)]
assert "undefined symbol: TF_Gone" in text and "sent together after backward" in text, text
sdp.init()
assert sdp.allreduce(tf.constant([1.0, 2.0])).numpy().tolist() == [1.0, 2.0]
"""


def test_library_refused() -> None:
    subprocess.run([sys.executable, "-c", REFUSED], check=True, timeout=60)


UNTRIED = """
import sys, warnings
import tensorflow as tf
tf.__version__ = "2.99.1"
sys.executable = sys.argv[1]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import smdp.tensorflow as sdp
    from smdp.tensorflow.library import is_native
print(is_native, *[str(one.message) for one in caught if "[smdp]" in str(one.message)])
sdp.init()
assert float(sdp.allreduce(2.0)) == 2.0
"""


def untried(python: str) -> str:
    command = [sys.executable, "-c", UNTRIED, python]
    # What a launcher sets must not make the trial a rank of the job.
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29"}
    return subprocess.run(
        command, check=True, timeout=100, env=environ, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def test_newer_than_what_was_tried() -> None:
    assert untried(sys.executable) == "True"


def test_newer_and_it_crashes(tmp_path: Path) -> None:
    crashing = tmp_path / "python"
    crashing.write_text("#!/bin/sh\necho something is wrong >&2\nkill -SEGV $$\n")
    crashing.chmod(0o755)
    told = untried(str(crashing))
    assert told.startswith("False [smdp] the op library of smdp.tensorflow does not work with"), told
    assert "(2.99.1): a test in a separate process ended with exit code -11: something is wrong" in told


def test_wrong_choice() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import smdp.tensorflow"],
        env={"SMDP_TENSORFLOW_OPS": "cuda", "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "SMDP_TENSORFLOW_OPS" in done.stderr and "native, python" in done.stderr
